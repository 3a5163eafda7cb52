/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include "stream.h"

#include <stdlib.h>

struct capture {
	struct capture *next; /* all captures of the process */
	CUgraph graph;
	CUgraphNode last;
	CUstream stream;
	const int *thread; /* thread_mode of the thread that began it */
	int mode;
	bool spoilt;
};

static struct capture *captures;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct capture *capture_of(CUstream stream)
{
	CUstream object = stream_object(stream);

	return object ? object->capture : NULL;
}

/* Ends a capture without its graph. */
static void end(struct capture *capture)
{
	struct capture **link = &captures;

	capture->stream->capture = NULL;
	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	free(capture);
}

void capture_forget(CUstream stream)
{
	if (!stream->capture)
		return;
	graph_destroy(stream->capture->graph);
	end(stream->capture);
}

static CUresult check(const struct capture *capture)
{
	return capture->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static size_t after(const struct capture *capture)
{
	return capture->last ? 1 : 0;
}

CUresult capture_add(struct capture *capture, int type, CUgraphNode *out)
{
	TRY(check(capture));
	TRY(graph_add(capture->graph, type, &capture->last, after(capture), out));
	capture->last = *out;
	return CUDA_SUCCESS;
}

CUresult capture_alloc(struct capture *capture, const CUmemPoolProps *properties, size_t size,
                       CUdeviceptr *out)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = *properties, .bytesize = size};
	CUgraphNode node;

	TRY(check(capture));
	TRY(graph_add_alloc(capture->graph, &capture->last, after(capture), &params, &node));
	capture->last = node;
	*out = params.dptr;
	return CUDA_SUCCESS;
}

CUresult capture_free(struct capture *capture, CUdeviceptr pointer)
{
	CUgraphNode node;

	TRY(check(capture));
	TRY(graph_add_free(capture->graph, &capture->last, after(capture), pointer, &node));
	capture->last = node;
	return CUDA_SUCCESS;
}

CUresult capture_spoil(struct capture *capture)
{
	capture->spoilt = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* By the documentation of cuThreadExchangeStreamCaptureMode. */
static bool conflicts(const struct capture *capture)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (capture->thread == &thread_mode)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

bool capture_forbids(void)
{
	bool found = false;

	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (conflicts(capture)) {
			(void)capture_spoil(capture);
			found = true;
		}
	}
	return found;
}

bool capture_forbids_wait(CUcontext context)
{
	bool found = false;

	for (struct capture *capture = captures; capture; capture = capture->next) {
		if (capture->stream->owned.context == context) {
			(void)capture_spoil(capture);
			found = true;
		}
	}
	return found;
}

bool capture_takes(CUstream stream, int type, CUresult *result)
{
	CUgraphNode node;
	bool taken;

	*result = driver_enter();
	if (*result != CUDA_SUCCESS)
		return true;
	taken = capture_of(stream) != NULL;
	if (taken)
		*result = capture_add(capture_of(stream), type, &node);
	driver_leave(CUDA_SUCCESS);
	return taken;
}

static CUresult begin(CUstream stream, int mode)
{
	CUstream object = stream_object(stream);
	struct capture *capture;

	DRIVER_ENTER_CONTEXT(context);
	if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (!object)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (object->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->graph = graph_create();
	if (!capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->stream = object;
	capture->thread = &thread_mode;
	capture->mode = mode;
	capture->next = captures;
	captures = capture;
	object->capture = capture;
	return CUDA_SUCCESS;
}

static CUresult finish(CUstream stream, CUgraph *out)
{
	struct capture *capture;
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	capture = capture_of(stream);
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	result = check(capture);
	*out = capture->graph;
	if (result != CUDA_SUCCESS) {
		graph_destroy(capture->graph);
		*out = NULL;
	}
	end(capture);
	return result;
}

static CUresult ask(CUstream stream, int *status)
{
	const struct capture *capture;

	DRIVER_ENTER_CONTEXT(context);
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	capture = capture_of(stream);
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (capture)
		*status = capture->spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
		                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	return begin(stream_legacy(stream), mode);
}

CUDA_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	return begin(stream_per_thread(stream), mode);
}

/* The first form has no modes. */
CUDA_API CUresult cuStreamBeginCapture(CUstream stream)
{
	return begin(stream_legacy(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUDA_API CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
	return begin(stream_per_thread(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
}

#define NOT_SIMULATED(name)                                                                        \
	CUDA_API CUresult name(void)                                                               \
	{                                                                                          \
		DRIVER_ENTER_CONTEXT(context);                                                     \
		(void)context;                                                                     \
		return CUDA_ERROR_NOT_SUPPORTED;                                                   \
	}

/* Captures into an existing graph, and functions of drivers newer than 580. */
NOT_SIMULATED(cuStreamBeginCaptureToGraph)
NOT_SIMULATED(cuStreamBeginRecaptureToGraph)
NOT_SIMULATED(cuStreamBeginCaptureToCig)
NOT_SIMULATED(cuStreamEndCaptureToCig)

CUDA_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	return finish(stream_legacy(stream), out);
}

CUDA_API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *out)
{
	return finish(stream_per_thread(stream), out);
}

CUDA_API CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	return ask(stream_legacy(stream), status);
}

CUDA_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
	return ask(stream_per_thread(stream), status);
}

CUDA_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = thread_mode;

	if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
	    *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
