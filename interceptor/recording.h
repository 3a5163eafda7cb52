/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that capture work for graphs. A capture also ends with its stream, context or thread: a
 * stream is recorded before it begins one, and cuStreamIsCapturing checks it later.
 *
 * Waiting for a context invalidates its captures (cuCtxSynchronize's documentation). So
 * recording_wait() announces its wait before it checks the records, and recording_begin() checks
 * for waits after it has recorded the stream: one of the two sees the other.
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
	bool begins;     /* the driver's call is still to be made, or under way */
};

struct recordings {
	struct lock lock;
	MAP(struct recording) known; /* by stream, or by the thread's address */
	uint32_t waits;              /* calls of recording_wait() under way */
};

/* Before a call that starts a capture, and after one that starts or ends it, also after a failure.
 * With `per_thread`, NULL is the default stream of the thread. */
void recording_begin(CUstream stream, bool per_thread);
void recording_update(CUstream stream, bool per_thread);

/* Around the end of a stream. False if it is not recorded. */
bool recording_take(CUstream stream, struct recording *recording);
void recording_put(CUstream stream, const struct recording *recording);

void recording_context_gone(uint64_t context);

/* Behind the gate: report whether a capture is under way; wait for all work of an owner's context,
 * or return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED at once if one is. */
bool recording_any(void);
CUresult recording_wait(uint64_t owner);

#endif
