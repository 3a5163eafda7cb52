/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of work for graphs. Waiting for a context invalidates a capture under way
 * (cuCtxSynchronize's documentation), so a process that moves its memory itself first calls
 * recording_any(). */
#include "recording.h"
#include "table.h"

static CUresult began(CUresult result, CUstream stream, bool per_thread)
{
	if (result == CUDA_SUCCESS)
		recording_began(stream, per_thread);
	return result;
}

static CUresult ended(CUresult result, CUstream stream, bool per_thread)
{
	recording_ended(stream, per_thread);
	return result;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	return began(DRIVER(cuStreamBeginCapture)(stream), stream, false);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return began(DRIVER(cuStreamBeginCapture_ptsz)(stream), stream, true);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return began(DRIVER(cuStreamBeginCapture_v2)(stream, mode), stream, false);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return began(DRIVER(cuStreamBeginCapture_v2_ptsz)(stream, mode), stream, true);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                     const void *data, size_t count, int mode)
{
	return began(DRIVER(cuStreamBeginCaptureToGraph)(stream, graph, after, data, count, mode),
	             stream, false);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                          const void *data, size_t count, int mode)
{
	return began(
	    DRIVER(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, after, data, count, mode),
	    stream, true);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback,
                                       void *data)
{
	return began(DRIVER(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data),
	             stream, false);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph,
                                            void *callback, void *data)
{
	return began(
	    DRIVER(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data), stream,
	    true);
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, void *parameters)
{
	return began(DRIVER(cuStreamBeginCaptureToCig)(stream, parameters), stream, false);
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *parameters)
{
	return began(DRIVER(cuStreamBeginCaptureToCig_ptsz)(stream, parameters), stream, true);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return ended(DRIVER(cuStreamEndCapture)(stream, graph), stream, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return ended(DRIVER(cuStreamEndCapture_ptsz)(stream, graph), stream, true);
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
	return ended(DRIVER(cuStreamEndCaptureToCig)(stream), stream, false);
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
	return ended(DRIVER(cuStreamEndCaptureToCig_ptsz)(stream), stream, true);
}
