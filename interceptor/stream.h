/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_STREAM_H
#define GPUSLICE_STREAM_H

#include "table.h"

#include <stdint.h>

/* The highest handle of a default stream: CU_STREAM_PER_THREAD. */
enum { STREAM_PER_THREAD = 2 };

/* Whether what is launched in the stream is recorded for a graph, and takes no memory now.
 * `per_thread`: NULL is the thread's own default stream. */
static inline bool stream_records(CUstream stream, bool per_thread)
{
	int status = 0;

	if (per_thread && DRIVER_HAS(cuStreamIsCapturing_ptsz))
		return DRIVER(cuStreamIsCapturing_ptsz)(stream, &status) == CUDA_SUCCESS && status;
	return DRIVER_HAS(cuStreamIsCapturing) &&
	       DRIVER(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status;
}

/*
 * While a stream records, a program's other calls may spoil the recording, and what is asked of a
 * pool does (driver observation), in whichever stream or thread, unless the thread has said that it
 * knows what it does. What the interceptor asks of pools is asked between these two.
 */
static inline int stream_capture_relaxed(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (DRIVER_HAS(cuThreadExchangeStreamCaptureMode))
		(void)DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static inline void stream_capture_restored(int mode)
{
	if (DRIVER_HAS(cuThreadExchangeStreamCaptureMode))
		(void)DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* The context that a stream is of; NULL for a default stream, which is the current one's. */
static inline CUcontext stream_context(CUstream stream)
{
	CUcontext context = NULL;

	if ((uintptr_t)stream <= STREAM_PER_THREAD || !DRIVER_HAS(cuStreamGetCtx) ||
	    DRIVER(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
		return NULL;
	return context;
}

#endif
