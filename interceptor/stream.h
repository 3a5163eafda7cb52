/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_STREAM_H
#define GPUSLICE_STREAM_H

#include "table.h"

#include <stdint.h>

/* The highest handle of a default stream. */
enum { STREAM_PER_THREAD = 2 };
#define STREAM_OWN ((CUstream)STREAM_PER_THREAD) /* the thread's own default stream */

/* Reports whether the stream is captured for a graph, so that work takes no memory now.
 * `per_thread`: NULL is the thread's own default stream. */
static inline bool stream_records(CUstream stream, bool per_thread)
{
	int status = 0;

	if (per_thread && DRIVER_HAS(cuStreamIsCapturing_ptsz))
		return DRIVER(cuStreamIsCapturing_ptsz)(stream, &status) == CUDA_SUCCESS && status;
	return DRIVER_HAS(cuStreamIsCapturing) &&
	       DRIVER(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status;
}

/* During a capture, other calls of any thread can invalidate it, even queries of a pool (driver
 * observation), except in relaxed mode, in which queries of pools are made. */
static inline int stream_capture_relaxed(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (DRIVER_HAS(cuThreadExchangeStreamCaptureMode))
		(void)DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

static inline void stream_capture_restored(int *mode)
{
	if (DRIVER_HAS(cuThreadExchangeStreamCaptureMode))
		(void)DRIVER(cuThreadExchangeStreamCaptureMode)(mode);
}

/* From here to the end of the block. */
#define STREAM_CAPTURE_RELAXED                                                                     \
	int stream_capture_mode __attribute__((cleanup(stream_capture_restored))) =                \
	    stream_capture_relaxed()

/* Returns a stream's context; NULL for a default stream, which uses the current one. */
static inline CUcontext stream_context(CUstream stream)
{
	CUcontext context = NULL;

	if ((uintptr_t)stream <= STREAM_PER_THREAD || !DRIVER_HAS(cuStreamGetCtx) ||
	    DRIVER(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
		return NULL;
	return context;
}

#endif
