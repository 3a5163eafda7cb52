/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. Up to a limit they move bytes, for programs that check their data; beyond it
 * they only check their arguments, so that tests with gigabytes need no such memory.
 */
#define _GNU_SOURCE
#include "copy.h"
#include "address.h"
#include "capture.h"
#include "driver.h"
#include "managed.h"
#include "pool.h"
#include "stream.h"
#include "vmm.h"
#include "work.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REAL_COPY_LIMIT (16 * MiB)
#define PAGE ((size_t)4096)
#define MANY_PAGES 256

static CUresult check(CUcontext context, CUdeviceptr start, size_t size, bool write)
{
	const struct range *range;

	if (vmm_reservation(start))
		return vmm_may_touch(context, start, size, write) ? CUDA_SUCCESS
		                                                  : CUDA_ERROR_INVALID_VALUE;
	range = ranges_at(&allocations, start);
	if (!range || size > range->size - (start - range->start))
		return CUDA_ERROR_INVALID_VALUE;
	if (range->kind == RANGE_POOL && !pool_may_touch(range))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

bool copy_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write)
{
	return check(context, start, size, write) == CUDA_SUCCESS;
}

/* A write by the card: the managed pages in it exist from now on. */
static void touch(CUdeviceptr start, size_t size)
{
	struct range *range = ranges_at(&allocations, start);

	if (range && range->kind == RANGE_MANAGED)
		managed_touch(range, start, size);
}

void *copy_view(CUdeviceptr start, size_t size)
{
	if (ranges_at(&allocations, start)->kind != RANGE_HOST && !address_back(start, size))
		return NULL;
	return (void *)(uintptr_t)start;
}

static bool is_zero(const unsigned char *bytes, size_t size)
{
	return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

/* memmove() that keeps never-written pages unwritten on both sides, and writes no zeros to them:
 * otherwise a moved gigabyte would need real memory. Both ends begin at the same offset in a page,
 * or everything is moved. */
static void move_pages(unsigned char *target, const unsigned char *source, size_t size,
                       bool to_device)
{
	unsigned char there[MANY_PAGES], here[MANY_PAGES];
	size_t head = (PAGE - (uintptr_t)source % PAGE) % PAGE;

	if (size < 2 * PAGE * MANY_PAGES || ((uintptr_t)source - (uintptr_t)target) % PAGE ||
	    sysconf(_SC_PAGESIZE) != (long)PAGE) {
		memmove(target, source, size);
		return;
	}
	memmove(target, source, head);
	for (size_t at = head, part; at < size; at += part) {
		part = size - at < PAGE * MANY_PAGES ? size - at : PAGE * MANY_PAGES;
		if (mincore((void *)(target + at), part, there) != 0 ||
		    mincore((void *)(uintptr_t)(source + at), part, here) != 0) {
			memmove(target + at, source + at, part);
			continue;
		}
		for (size_t page = 0; page * PAGE < part; page++) {
			size_t from = at + page * PAGE;
			size_t bytes = size - from < PAGE ? size - from : PAGE;

			if (there[page] & 1 ||
			    (here[page] & 1 && !(to_device && is_zero(source + from, bytes))))
				memmove(target + from, source + from, bytes);
		}
	}
}

static CUresult move(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device,
                     size_t size)
{
	void *target = (void *)(uintptr_t)to;
	const void *source = (const void *)(uintptr_t)from;

	DRIVER_ENTER_CONTEXT(context);
	TRY(work_wait_all(context));
	if (!size)
		return CUDA_SUCCESS;
	if (to_device)
		TRY(check(context, to, size, true));
	if (from_device)
		TRY(check(context, from, size, false));
	if (!target || !source)
		return CUDA_ERROR_INVALID_VALUE;
	if (to_device)
		touch(to, size);
	if (size > REAL_COPY_LIMIT)
		return CUDA_SUCCESS;
	if (to_device)
		target = copy_view(to, size);
	if (from_device)
		source = copy_view(from, size);
	if (!target || !source)
		return CUDA_ERROR_OUT_OF_MEMORY;
	move_pages(target, source, size, to_device);
	return CUDA_SUCCESS;
}

/* A copy between host and card has ended when the call returns, with all earlier work. */
static CUresult wait_after(CUresult result)
{
	DRIVER_ENTER_BY(result == CUDA_SUCCESS ? driver_enter() : result);
	vmm_work_done();
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	return wait_after(move(to, true, (uintptr_t)from, false, size));
}

CUDA_API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
	return wait_after(move((uintptr_t)to, false, from, true, size));
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
	if (vmm_fails("cuMemcpyDtoHAsync"))
		return CUDA_ERROR_UNKNOWN;
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

static CUresult fill(CUdeviceptr to, const void *value, size_t width, size_t count)
{
	size_t size;
	char *target;

	DRIVER_ENTER_CONTEXT(context);
	if (__builtin_mul_overflow(width, count, &size) || to % width)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(check(context, to, size, true));
	TRY(work_wait_all(context));
	if (!size)
		return CUDA_SUCCESS;
	touch(to, size);
	vmm_fill(context, to, size);
	if (size > REAL_COPY_LIMIT)
		return CUDA_SUCCESS;
	target = copy_view(to, size);
	if (!target)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++)
		memcpy(target + i * width, value, width);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
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
