/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation in stream order, for both meanings of the NULL stream. */
#include "alloc.h"
#include "capture.h"
#include "pool.h"
#include "stream.h"
#include "work.h"

static CUresult allocate(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream)
{
	struct capture *capture;

	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	/* Unlike cuMemAlloc's, a request for nothing is granted. */
	if (!size) {
		*out = 0;
		return CUDA_SUCCESS;
	}
	if (!pool)
		pool = pool_current(context->device);
	else if (!pool_is_known(pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture = capture_of(stream);
	if (capture) {
		CUmemPoolProps properties = {.allocType = pool->type, .location = pool->location};

		return capture_alloc(capture, &properties, size, out);
	}
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return pool_allocate(pool, size, stream, out);
}

static CUresult release(CUdeviceptr pointer, CUstream stream)
{
	struct range *range;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_CONTEXT(context);
	if (!pointer)
		return CUDA_SUCCESS;
	if (capture_of(stream))
		return capture_free(capture_of(stream), pointer);
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	work_wait_all(NULL);
	range = ranges_at(&allocations, pointer);
	if (!range || range->start != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	switch (range->kind) {
	case RANGE_POOL:
		pool_free(range, stream);
		break;
	case RANGE_GRAPH:
		graph_memory_free(range);
		break;
	case RANGE_IMPORTED:
		pool_import_free(range);
		break;
	case RANGE_DEVICE:
		allocation_free(range);
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
	pool_point("cuMemAllocAsync");
	return allocate(out, size, NULL, stream_legacy(stream));
}

CUDA_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream stream)
{
	return allocate(out, size, NULL, stream_per_thread(stream));
}

CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool,
                                          CUstream stream)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(out, size, pool, stream_legacy(stream));
}

CUDA_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool,
                                               CUstream stream)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(out, size, pool, stream_per_thread(stream));
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	pool_point("cuMemFreeAsync");
	return release(pointer, stream_legacy(stream));
}

CUDA_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return release(pointer, stream_per_thread(stream));
}
