/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that record work for graphs. A recording ends by more than cuStreamEndCapture: with its
 * stream, its context, its thread. A stream is noted when it begins one, and cuStreamIsCapturing
 * says whether it still records.
 */
#ifndef GPUSLICE_RECORDING_H
#define GPUSLICE_RECORDING_H

#include "cuda_abi.h"
#include "lock.h"
#include "map.h"

#include <stdbool.h>

struct recording {
	uint64_t context;
	uint32_t thread; /* that has the stream as its own default one; 0: any may use the stream */
};

struct recordings {
	struct lock lock;
	MAP(struct recording) known; /* by stream, or by the thread's address */
};

/* `per_thread`: NULL is the thread's own default stream. */
void recording_began(CUstream stream, bool per_thread);
void recording_ended(CUstream stream, bool per_thread);

/* Around the end of a stream: false if it is not noted. */
bool recording_take(CUstream stream, struct recording *recording);
void recording_put(CUstream stream, const struct recording *recording);

void recording_context_gone(uint64_t context);

/* True if any stream records. Call it behind the gate. */
bool recording_any(void);

#endif
