/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that capture work for graphs. A capture also ends with its stream, context or thread: a
 * stream is recorded when it begins one, and cuStreamIsCapturing checks it later.
 */
#ifndef GPUSLICE_RECORDING_H
#define GPUSLICE_RECORDING_H

#include "cuda_abi.h"
#include "lock.h"
#include "map.h"

#include <stdbool.h>

struct recording {
	uint64_t context;
	uint32_t thread; /* the thread whose default stream it is; 0: any */
};

struct recordings {
	struct lock lock;
	MAP(struct recording) known; /* by stream, or by the thread's address */
};

/* `per_thread`: NULL is the thread's own default stream. */
void recording_began(CUstream stream, bool per_thread);
void recording_ended(CUstream stream, bool per_thread);

/* Around the end of a stream. False if it is not recorded. */
bool recording_take(CUstream stream, struct recording *recording);
void recording_put(CUstream stream, const struct recording *recording);

void recording_context_gone(uint64_t context);

/* Called behind the gate. */
bool recording_any(void);

#endif
