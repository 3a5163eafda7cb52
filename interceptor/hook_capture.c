/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recordings of work for graphs: how many are under way. While one is, who waits for a context
 * spoils it (cuCtxSynchronize's documentation), so a process that moves its memory itself does
 * not.
 */
#include "state.h"
#include "table.h"

static CUresult began(CUresult result)
{
	if (result == CUDA_SUCCESS)
		__atomic_fetch_add(&state_of(process_get())->mover.recordings, 1, __ATOMIC_SEQ_CST);
	return result;
}

/* One that was spoilt, or into which a stream never came back, ends with that error. */
static CUresult ended(CUresult result)
{
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
	    result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
		__atomic_fetch_sub(&state_of(process_get())->mover.recordings, 1, __ATOMIC_SEQ_CST);
	return result;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	return began(DRIVER(cuStreamBeginCapture)(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return began(DRIVER(cuStreamBeginCapture_ptsz)(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return began(DRIVER(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return began(DRIVER(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                     const void *data, size_t count, int mode)
{
	return began(DRIVER(cuStreamBeginCaptureToGraph)(stream, graph, after, data, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                          const void *data, size_t count, int mode)
{
	return began(
	    DRIVER(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, after, data, count, mode));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return ended(DRIVER(cuStreamEndCapture)(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return ended(DRIVER(cuStreamEndCapture_ptsz)(stream, graph));
}
