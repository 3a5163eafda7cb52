/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory, the driver's and the program's own: real memory, and no VRAM. */
#include "address.h"
#include "capture.h"
#include "driver.h"
#include "work.h"

#include <stdlib.h>

struct host_allocation {
	struct owned owned;
	struct range range;
	bool registered; /* the program's own */
};

static void free_host(struct owned *owned)
{
	struct host_allocation *allocation = (struct host_allocation *)owned;

	ranges_remove(&allocations, &allocation->range);
	if (!allocation->registered)
		free((void *)(uintptr_t)allocation->range.start);
	free(allocation);
}

static CUresult allocate_host(CUcontext context, void **out, size_t size)
{
	struct host_allocation *allocation = calloc(1, sizeof(*allocation));
	void *memory = calloc(1, size);

	if (!allocation || !memory)
		goto no_memory;
	allocation->range = (struct range){
	    .start = (uintptr_t)memory, .size = size, .kind = RANGE_HOST, .context = context};
	if (!ranges_add(&allocations, &allocation->range))
		goto no_memory;
	context_own(context, &allocation->owned, free_host);
	*out = memory;
	return CUDA_SUCCESS;
no_memory:
	free(memory);
	free(allocation);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !size)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate_host(context, out, size);
}

CUDA_API CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	return cuMemHostAlloc(out, size, 0);
}

CUDA_API CUresult cuMemAllocHost(void **out, unsigned int size)
{
	return cuMemHostAlloc(out, size, 0);
}

CUDA_API CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
	struct host_allocation *allocation;

	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	if (!memory || !size || (uintptr_t)memory + size < size)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (ranges_overlapping(&allocations, (uintptr_t)memory, size))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	allocation = calloc(1, sizeof(*allocation));
	if (!allocation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	allocation->registered = true;
	allocation->range = (struct range){
	    .start = (uintptr_t)memory, .size = size, .kind = RANGE_HOST, .context = context};
	if (!ranges_add(&allocations, &allocation->range)) {
		free(allocation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context_own(context, &allocation->owned, free_host);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemHostRegister(void *memory, size_t size, unsigned int flags)
{
	return cuMemHostRegister_v2(memory, size, flags);
}

/* Frees the memory of that kind at that start; returns `otherwise` if there is none. */
static CUresult give_back(void *memory, bool registered, CUresult otherwise)
{
	struct host_allocation *allocation;
	struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	if (registered && capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	TRY(work_wait_all(context));
	range = ranges_at(&allocations, (uintptr_t)memory);
	if (!range || range->kind != RANGE_HOST || range->start != (uintptr_t)memory)
		return otherwise;
	allocation =
	    (struct host_allocation *)((char *)range - offsetof(struct host_allocation, range));
	if (allocation->registered != registered)
		return otherwise;
	context_disown(&allocation->owned);
	free_host(&allocation->owned);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemHostUnregister(void *memory)
{
	return give_back(memory, true, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUDA_API CUresult cuMemFreeHost(void *memory)
{
	return give_back(memory, false, CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *memory, unsigned int flags)
{
	const struct range *range;

	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	range = ranges_at(&allocations, (uintptr_t)memory);
	if (!out || !range || range->kind != RANGE_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (uintptr_t)memory;
	return CUDA_SUCCESS;
}
