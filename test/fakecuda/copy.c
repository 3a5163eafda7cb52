/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. Up to a limit they really move bytes, so that a program which checks its data
 * is content; beyond it they only check their arguments, so that a test of gigabytes needs none.
 */
#include "address.h"
#include "capture.h"
#include "driver.h"
#include "managed.h"
#include "stream.h"

#include <string.h>

#define REAL_COPY_LIMIT (4 * MiB)

/*
 * Whether [start, start + size) lies in one known range, or in mappings side by side. An unknown
 * one is host memory.
 */
static bool is_within(CUdeviceptr start, size_t size)
{
	const struct range *range = ranges_at(&allocations, start);
	size_t rest = range ? range->size - (start - range->start) : 0;

	while (range && size > rest) {
		if (range->kind != RANGE_MAPPED)
			return false;
		start += rest;
		size -= rest;
		range = ranges_at(&allocations, start);
		rest = range ? range->size : 0;
	}
	return range != NULL;
}

/* A write by the card: managed pages that it hits are there from now on. */
static void touch(CUdeviceptr start, size_t size)
{
	struct range *range = ranges_at(&allocations, start);

	if (range && range->kind == RANGE_MANAGED)
		managed_touch(range, start, size);
}

/* The host's view of a device range, or NULL if it has none. */
static void *view(CUdeviceptr start, size_t size)
{
	if (!is_within(start, size))
		return NULL;
	if (ranges_at(&allocations, start)->kind != RANGE_HOST && !address_back(start, size))
		return NULL;
	return (void *)(uintptr_t)start;
}

static CUresult move(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device,
                     size_t size)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	void *target = (void *)(uintptr_t)to;
	const void *source = (const void *)(uintptr_t)from;

	if (result != CUDA_SUCCESS)
		return result;
	if (!size)
		return driver_leave(CUDA_SUCCESS);
	if ((to_device && !is_within(to, size)) || (from_device && !is_within(from, size)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!target || !source)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (to_device)
		touch(to, size);
	if (size > REAL_COPY_LIMIT)
		return driver_leave(CUDA_SUCCESS);
	if (to_device)
		target = view(to, size);
	if (from_device)
		source = view(from, size);
	if (!target || !source)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memmove(target, source, size);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	return move(to, true, (uintptr_t)from, false, size);
}

CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	return move((uintptr_t)to, false, from, true, size);
}

CUDA_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return move(to, true, from, true, size);
}

CUDA_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size,
                                       CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMCPY, &result))
		return result;
	return move(to, true, (uintptr_t)from, false, size);
}

CUDA_API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMCPY, &result))
		return result;
	return move((uintptr_t)to, false, from, true, size);
}

CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size,
                                       CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMCPY, &result))
		return result;
	return move(to, true, from, true, size);
}

/* Under unified addressing the addresses themselves say which side they are on. */
CUDA_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return move(to, ranges_at(&allocations, to), from, ranges_at(&allocations, from), size);
}

CUDA_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMCPY, &result))
		return result;
	return cuMemcpy(to, from, size);
}

static CUresult fill(CUdeviceptr to, const void *value, size_t width, size_t count)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	size_t size;
	char *target;

	if (result != CUDA_SUCCESS)
		return result;
	if (__builtin_mul_overflow(width, count, &size) || to % width || !is_within(to, size))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!size)
		return driver_leave(CUDA_SUCCESS);
	touch(to, size);
	if (size > REAL_COPY_LIMIT)
		return driver_leave(CUDA_SUCCESS);
	target = view(to, size);
	if (!target)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 0; i < count; i++)
		memcpy(target + i * width, value, width);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
	return fill(to, &value, sizeof(value), count);
}

CUDA_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
	return fill(to, &value, sizeof(value), count);
}

CUDA_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
	return fill(to, &value, sizeof(value), count);
}

CUDA_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                                  CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMSET, &result))
		return result;
	return fill(to, &value, sizeof(value), count);
}

CUDA_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count,
                                   CUstream stream)
{
	CUresult result;

	if (capture_takes(stream_legacy(stream), CU_GRAPH_NODE_TYPE_MEMSET, &result))
		return result;
	return fill(to, &value, sizeof(value), count);
}
