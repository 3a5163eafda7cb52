/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and kernels. All work is done the moment that it is given, so a wait never
 * waits; what it does is what a wait does to memory pools.
 */
#include "stream.h"

#include "pool.h"

#include <stdlib.h>

struct CUstream_st {
	struct owned owned;
};

struct CUevent_st {
	struct owned owned;
	CUstream stream; /* where it was recorded; NULL: nowhere yet */
};

struct CUmod_st {
	struct owned owned;
};

struct CUfunc_st {
	char unused;
};

static void free_owned(struct owned *owned)
{
	free(owned);
}

/* Anything that a context owns and that takes no VRAM of its own here. */
static CUresult create_owned(void **out, size_t size)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	struct owned *owned;

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	owned = calloc(1, size);
	if (!owned)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	context_own(context, owned, free_owned);
	*out = owned;
	return driver_leave(CUDA_SUCCESS);
}

static CUresult destroy_owned(void *thing)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!thing)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	context_disown(thing);
	free(thing);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult synchronise(CUstream stream)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	pools_synchronise(context->device, stream);
	return driver_leave(CUDA_SUCCESS);
}

static CUresult with_context(void)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	return result == CUDA_SUCCESS ? driver_leave(CUDA_SUCCESS) : result;
}

CUDA_API CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	(void)flags;
	return create_owned((void **)out, sizeof(struct CUstream_st));
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	(void)flags;
	(void)priority;
	return create_owned((void **)out, sizeof(struct CUstream_st));
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	return destroy_owned(stream);
}

CUDA_API CUresult cuStreamDestroy(CUstream stream)
{
	return cuStreamDestroy_v2(stream);
}

CUDA_API CUresult cuStreamSynchronize(CUstream stream)
{
	return synchronise(stream_legacy(stream));
}

CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return synchronise(stream_per_thread(stream));
}

CUDA_API CUresult cuStreamQuery(CUstream stream)
{
	(void)stream;
	return with_context();
}

CUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	(void)stream;
	(void)flags;
	return event ? with_context() : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	(void)flags;
	return create_owned((void **)out, sizeof(struct CUevent_st));
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
	return destroy_owned(event);
}

CUDA_API CUresult cuEventDestroy(CUevent event)
{
	return cuEventDestroy_v2(event);
}

static CUresult record(CUevent event, CUstream stream)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!event)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	event->stream = stream;
	return driver_leave(CUDA_SUCCESS);
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
	return event ? with_context() : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	return event->stream ? synchronise(event->stream) : with_context();
}

CUDA_API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	if (!start || !end)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!milliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	*milliseconds = 0;
	return with_context();
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	return create_owned((void **)out, sizeof(struct CUmod_st));
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
	return destroy_owned(module);
}

/* Kernels do nothing, so one stands for all. */
CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	static struct CUfunc_st function;

	if (!module)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &function;
	return with_context();
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                 void **parameters, void **extra)
{
	(void)shared_bytes;
	(void)stream;
	(void)parameters;
	(void)extra;
	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
		return CUDA_ERROR_INVALID_VALUE;
	return with_context();
}
