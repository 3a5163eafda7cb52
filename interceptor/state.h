/* SPDX-License-Identifier: Apache-2.0 */
/* All that is remembered about this process: of each part only its owner knows more. */
#ifndef GPUSLICE_STATE_H
#define GPUSLICE_STATE_H

#include "block.h"
#include "context.h"
#include "function.h"
#include "graph.h"
#include "hold.h"
#include "nvml_cache.h"
#include "object.h"
#include "overhead.h"
#include "pool.h"
#include "process.h"

struct state {
	struct process process; /* the first: at_hand.process points to it */
	struct blocks blocks;
	struct holds holds;
	struct contexts contexts;
	struct overheads overheads;
	struct functions functions;
	struct objects objects;
	struct pools pools;
	struct graphs graphs;
	struct nvml_cache nvml;
};

static inline struct state *state_of(struct process *process)
{
	return (struct state *)process;
}

#endif
