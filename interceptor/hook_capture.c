/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of work for graphs: see recording.h. */
#include "piece.h"
#include "recording.h"
#include "table.h"

/* `call` is made after recording_begin(). */
#define BEGIN(call, stream, per_thread)                                                            \
	({                                                                                         \
		CUresult begun;                                                                    \
                                                                                                   \
		recording_begin(stream, per_thread);                                               \
		begun = call;                                                                      \
		recording_update(stream, per_thread);                                              \
		begun;                                                                             \
	})

static CUresult ended(CUresult result, CUstream stream, bool per_thread)
{
	recording_update(stream, per_thread);
	(void)piece_end_freed();
	return result;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
	return BEGIN(DRIVER(cuStreamBeginCapture)(stream), stream, false);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return BEGIN(DRIVER(cuStreamBeginCapture_ptsz)(stream), stream, true);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return BEGIN(DRIVER(cuStreamBeginCapture_v2)(stream, mode), stream, false);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return BEGIN(DRIVER(cuStreamBeginCapture_v2_ptsz)(stream, mode), stream, true);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                     const void *data, size_t count, int mode)
{
	return BEGIN(DRIVER(cuStreamBeginCaptureToGraph)(stream, graph, after, data, count, mode),
	             stream, false);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                          const void *data, size_t count, int mode)
{
	return BEGIN(
	    DRIVER(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, after, data, count, mode),
	    stream, true);
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback,
                                       void *data)
{
	return BEGIN(DRIVER(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data),
	             stream, false);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph,
                                            void *callback, void *data)
{
	return BEGIN(
	    DRIVER(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data), stream,
	    true);
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, void *parameters)
{
	return BEGIN(DRIVER(cuStreamBeginCaptureToCig)(stream, parameters), stream, false);
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *parameters)
{
	return BEGIN(DRIVER(cuStreamBeginCaptureToCig_ptsz)(stream, parameters), stream, true);
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
