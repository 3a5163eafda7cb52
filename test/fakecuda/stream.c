/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events. All work except a long kernel's (work.h) is done when it is submitted; a wait
 * affects memory pools only.
 */
#include "stream.h"

#include "capture.h"
#include "overhead.h"
#include "pool.h"
#include "vmm.h"
#include "work.h"

#include <stdlib.h>

struct CUevent_st {
	struct owned owned;
	CUstream stream; /* of its record; NULL: not recorded */
	uint64_t after;  /* the last kernel launched before it */
};

CUstream stream_object(CUstream stream)
{
	static _Thread_local struct CUstream_st per_thread;

	if (stream == CU_STREAM_LEGACY)
		return NULL;
	return stream == CU_STREAM_PER_THREAD ? &per_thread : stream;
}

static void free_stream(struct owned *owned)
{
	capture_forget((CUstream)owned);
	work_forget_stream((CUstream)owned);
	overhead_drop_stream(owned->context);
	free(owned);
}

static void free_event(struct owned *owned)
{
	free(owned);
}

CUresult stream_create(CUcontext context, CUstream *out)
{
	CUstream stream = calloc(1, sizeof(*stream));

	if (!stream || overhead_add_stream(context) != CUDA_SUCCESS) {
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context_own(context, &stream->owned, free_stream);
	*out = stream;
	return CUDA_SUCCESS;
}

static CUresult destroy_owned(struct owned *thing)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!thing)
		return CUDA_ERROR_INVALID_HANDLE;
	context_disown(thing);
	thing->destroy(thing);
	return CUDA_SUCCESS;
}

/* An event's stream may be destroyed; a stream that a caller names exists. */
static CUresult synchronise(CUstream stream, bool is_named, uint64_t last)
{
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (is_named && capture_of(stream))
		return capture_spoil(capture_of(stream));
	if (is_named && capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	result = work_wait(context, stream, last);
	vmm_work_done();
	pools_synchronise(context->device, stream);
	return result;
}

/* NOT_READY while one of those kernels runs. */
static CUresult query(CUstream stream, bool is_named, uint64_t last)
{
	DRIVER_ENTER_CONTEXT(context);
	if (is_named && capture_of(stream))
		return capture_spoil(capture_of(stream));
	vmm_work_done();
	if (work_is_left(context, stream, last))
		return CUDA_ERROR_NOT_READY;
	return work_wait(context, stream, last);
}

CUDA_API CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	return out ? stream_create(context, out) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	(void)priority;
	return cuStreamCreate(out, flags);
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	return destroy_owned(stream ? &stream->owned : NULL);
}

CUDA_API CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

CUDA_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out)
{
	bool is_default = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;

	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = is_default ? context : stream->owned.context;
	return CUDA_SUCCESS;
}

/* A capturing stream has no query of its device, unlike its context. */
static CUresult ask_device(CUstream stream, CUdevice *out)
{
	CUstream object = stream_object(stream);

	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (object && object->capture)
		return capture_spoil(object->capture);
	*out = (object ? object->owned.context : context)->device->ordinal;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetDevice(CUstream stream, CUdevice *out)
{
	return ask_device(stream_legacy(stream), out);
}

CUDA_API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *out)
{
	return ask_device(stream_per_thread(stream), out);
}

CUDA_API CUresult cuStreamSynchronize(CUstream stream)
{
	return synchronise(stream_legacy(stream), true, UINT64_MAX);
}

CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return synchronise(stream_per_thread(stream), true, UINT64_MAX);
}

CUDA_API CUresult cuStreamQuery(CUstream stream)
{
	return query(stream_legacy(stream), true, UINT64_MAX);
}

CUDA_API CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	CUevent event;

	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context_own(context, &event->owned, free_event);
	*out = event;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
	return destroy_owned(event ? &event->owned : NULL);
}

static CUresult record(CUevent event, CUstream stream)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	event->stream = capture_of(stream) ? NULL : stream;
	event->after = work_last();
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return record(event, stream_legacy(stream));
}

CUDA_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	return record(event, stream_per_thread(stream));
}

CUDA_API CUresult cuEventQuery(CUevent event)
{
	return event ? query(event->stream, false, event->stream ? event->after : 0)
	             : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	return event->stream ? synchronise(event->stream, false, event->after)
	                     : query(NULL, false, 0);
}
