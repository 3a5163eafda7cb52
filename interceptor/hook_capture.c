/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of work for graphs: see recording.h. */
#include "piece.h"
#include "recording.h"
#include "table.h"

static CUresult begun(CUresult result, CUstream stream, bool per_thread)
{
	recording_update(stream, per_thread);
	return result;
}

static CUresult ended(CUresult result, CUstream stream, bool per_thread)
{
	recording_update(stream, per_thread);
	(void)piece_end_freed();
	return result;
}

/* A function that starts a capture, and its variant for the default stream of each thread. */
#define BEGINS(name, parameters, arguments)                                                        \
	CUresult name parameters                                                                   \
	{                                                                                          \
		recording_begin(stream, false);                                                    \
		return begun(DRIVER(name) arguments, stream, false);                               \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		recording_begin(stream, true);                                                     \
		return begun(DRIVER(name##_ptsz) arguments, stream, true);                         \
	}

BEGINS(cuStreamBeginCapture, (CUstream stream), (stream))
BEGINS(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGINS(cuStreamBeginCaptureToGraph,
       (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *data, size_t count,
        int mode),
       (stream, graph, after, data, count, mode))
BEGINS(cuStreamBeginRecaptureToGraph,
       (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
       (stream, mode, graph, callback, data))
BEGINS(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), (stream, parameters))

/* The same for one that ends it. */
#define ENDS(name, parameters, arguments)                                                          \
	CUresult name parameters                                                                   \
	{                                                                                          \
		return ended(DRIVER(name) arguments, stream, false);                               \
	}                                                                                          \
	CUresult name##_ptsz parameters                                                            \
	{                                                                                          \
		return ended(DRIVER(name##_ptsz) arguments, stream, true);                         \
	}

ENDS(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
ENDS(cuStreamEndCaptureToCig, (CUstream stream), (stream))
