/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc and its variants, cuMemFree, and queries of memory. */
#include "alloc.h"
#include "capture.h"

#include "driver.h"
#include "graph_memory.h"
#include "machine_limit.h"
#include "managed.h"
#include "pool.h"
#include "vmm.h"
#include "vram.h"
#include "work.h"

#include <stdlib.h>

#define PITCH_STEP 512

struct allocation {
	struct owned owned;
	struct range range;
	struct vram vram;
};

static struct allocation *allocation_of(struct range *range)
{
	return (struct allocation *)((char *)range - offsetof(struct allocation, range));
}

static void free_allocation(struct owned *owned)
{
	struct allocation *allocation = (struct allocation *)owned;

	ranges_remove(&allocations, &allocation->range);
	if (!vram_address(&allocation->vram))
		address_free(allocation->range.start, allocation->vram.bytes);
	vram_give(&allocation->vram);
	free(allocation);
}

void allocation_free(struct range *range)
{
	struct allocation *allocation = allocation_of(range);

	context_disown(&allocation->owned);
	free_allocation(&allocation->owned);
}

uint64_t allocation_share(struct range *range)
{
	struct vram *vram = &allocation_of(range)->vram;

	return vram_share(vram, vram_address(vram) ? 0 : range->start);
}

static CUresult allocate(CUcontext context, size_t size, CUdeviceptr *out)
{
	struct allocation *allocation = calloc(1, sizeof(*allocation));
	struct vram *vram;

	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vram = &allocation->vram;
	if (!vram_take(context->device, VRAM_LINEAR, size, vram))
		goto no_memory;
	allocation->range.kind = RANGE_DEVICE;
	allocation->range.size = size;
	allocation->range.context = context;
	allocation->range.start = vram_address(vram);
	if (!allocation->range.start)
		allocation->range.start = address_reserve(vram->bytes, ADDRESS_STEP);
	if (!allocation->range.start || !ranges_add(&allocations, &allocation->range))
		goto no_address;
	context_own(context, &allocation->owned, free_allocation);
	*out = allocation->range.start;
	return CUDA_SUCCESS;
no_address:
	vram_give(vram);
no_memory:
	free(allocation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return allocate(context, size, out);
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                     unsigned int element)
{
	size_t row, size;

	DRIVER_ENTER_CONTEXT(context);
	if (!out || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	row = round_up(width, PITCH_STEP);
	if (row < width || __builtin_mul_overflow(row, height, &size))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(allocate(context, size, out));
	*pitch = row;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !size || (flags != 1 && flags != 2))
		return CUDA_ERROR_INVALID_VALUE;
	return managed_allocate(context, size, out);
}

/* Memory of a destroyed green context stays until its primary context ends. */
static CUresult allocation_free_checked(struct range *range)
{
	if (!allocation_of(range)->owned.context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	allocation_free(range);
	return CUDA_SUCCESS;
}

/* It needs no context, since the address determines the memory's owner. But it fails in an unusable
 * one. */
CUDA_API CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	CUcontext current = context_current();
	struct range *range;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER();
	if (!pointer)
		return CUDA_SUCCESS;
	work_wait_all(NULL);
	if (current && current->alive && work_wait_all(current) != CUDA_SUCCESS)
		return work_wait_all(current);
	range = ranges_at(&allocations, pointer);
	if (!range || range->start != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	vmm_work_done();
	switch (range->kind) {
	case RANGE_DEVICE:
		result = allocation_free_checked(range);
		break;
	case RANGE_GRAPH:
		graph_memory_free(range);
		break;
	case RANGE_MANAGED:
		managed_free(range);
		break;
	case RANGE_POOL:
		pool_free_now(range);
		break;
	case RANGE_IMPORTED:
		pool_import_free(range);
		break;
	case RANGE_EXTERNAL:
		external_buffer_free(range);
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

/* The entry points of CUDA 3.1, with 32-bit addresses. Contexts of today's API refuse them. */
#define REFUSED(name)                                                                              \
	CUDA_API CUresult name(void)                                                               \
	{                                                                                          \
		DRIVER_ENTER_CONTEXT(context);                                                     \
		return CUDA_ERROR_INVALID_CONTEXT;                                                 \
	}

REFUSED(cuMemAlloc)
REFUSED(cuMemAllocPitch)
REFUSED(cuMemFree)
REFUSED(cuMemGetInfo)
REFUSED(cuMemGetAddressRange)

CUDA_API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	uint64_t capacity, used, room;

	DRIVER_ENTER_CONTEXT(context);
	capacity = device_capacity(context->device);
	used = machine_used(context->device->machine);
	room = used < capacity ? capacity - used : 0;
	machine_limit_own(context->device->machine, &capacity, &room);
	if (available)
		*available = room;
	if (total)
		*total = capacity;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr pointer)
{
	const struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	range = ranges_at(&allocations, pointer);
	if (!range)
		return CUDA_ERROR_NOT_FOUND;
	if (start)
		*start = range->start;
	if (size)
		*size = range->size;
	return CUDA_SUCCESS;
}
