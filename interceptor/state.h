/* SPDX-License-Identifier: Apache-2.0 */
/* All state of this process. Each part belongs to its module. */
#ifndef GPUSLICE_STATE_H
#define GPUSLICE_STATE_H

#include "block.h"
#include "context.h"
#include "function.h"
#include "graph.h"
#include "handover.h"
#include "hold.h"
#include "import.h"
#include "managed.h"
#include "movable.h"
#include "mover.h"
#include "nvml.h"
#include "object.h"
#include "overhead.h"
#include "pool.h"
#include "process.h"
#include "recheck.h"
#include "recording.h"

/* The kernel's largest page: memory cleared at fork needs its own pages. */
#if defined(__aarch64__)
#define STATE_PAGE 65536
#else
#define STATE_PAGE 4096
#endif

struct state {
	_Alignas(STATE_PAGE) struct process process; /* must be first: see process_get() */
	struct blocks blocks;
	struct holds holds;
	struct manageds manageds;
	struct contexts contexts;
	struct overheads overheads;
	struct functions functions;
	struct objects objects;
	struct pools pools;
	struct graphs graphs;
	struct nvml_cache nvml;
	struct movables movables;
	struct mover mover;
	struct recordings recordings;
	struct handovers handovers;
	struct imports imports;
	struct recheck recheck;
};

/* Checks for a fork first, as process_get(). */
static inline struct state *state_get(void)
{
	(void)process_get();
	return &state;
}

/* The part of that name, with its lock taken. */
#define STATE_TAKE(part)                                                                           \
	({                                                                                         \
		lock_take(&state_get()->part.lock);                                                \
		&state.part;                                                                       \
	})

/* The same, as `name`, until the end of the block. */
#define STATE_LOCKED(name, part)                                                                   \
	__typeof__(state.part) *name = &state_get()->part;                                         \
	LOCKED(&name->lock)

#endif
