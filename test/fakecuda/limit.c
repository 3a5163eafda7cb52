/* SPDX-License-Identifier: Apache-2.0 */
#include "limit.h"

#include <string.h>

/* CUlimit: a depth that cards since compute capability 9.0 do not have */
#define DEV_RUNTIME_SYNC_DEPTH 3

#define HEAP_STEP (2 * MiB)
#define HEAP_OVERHEAD (2 * MiB)
/* Observed once, of 200 GiB: what a larger heap becomes. What it depends on is not known. */
#define HEAP_MOST 17681179680ull

/* What an H100 says: stack, printf FIFO, malloc heap, -, pending launches, L2 fetch, L2 persisting.
 */
static const size_t defaults[LIMITS] = {1024, 8650752, 8388608, 0, 2048, 64, 9830400};

void limits_start(CUcontext context)
{
	memcpy(context->limits, defaults, sizeof(defaults));
	context->heap_taken = false;
	context->fifo_taken = false;
}

static CUcontext holder(CUcontext context)
{
	return context->parent ? context->parent : context;
}

CUresult limit_take_heap(CUcontext context)
{
	uint64_t bytes;

	context = holder(context);
	if (context->heap_taken)
		return CUDA_SUCCESS;
	bytes = context->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
	if (bytes > device_capacity(context->device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = round_up(bytes, HEAP_STEP) + HEAP_OVERHEAD;
	if (!device_charge(context->device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->listed += bytes;
	context->heap_taken = true;
	return CUDA_SUCCESS;
}

void limit_take_fifo(CUcontext context)
{
	holder(context)->fifo_taken = true;
}

/* Leaves the lock held only on success. */
static CUresult enter_limit(int limit, CUcontext *context)
{
	CUresult result = driver_enter_context(context);

	if (result != CUDA_SUCCESS)
		return result;
	*context = holder(*context);
	if (limit < 0 || limit >= LIMITS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (limit == DEV_RUNTIME_SYNC_DEPTH)
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext context;
	CUresult result = enter_limit(limit, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*value = context->limits[limit];
	return driver_leave(CUDA_SUCCESS);
}

/* Any value will do until a kernel needs the memory. */
CUDA_API CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext context;
	CUresult result = enter_limit(limit, &context);

	if (result != CUDA_SUCCESS)
		return result;
	if ((limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap_taken) ||
	    (limit == CU_LIMIT_PRINTF_FIFO_SIZE && context->fifo_taken))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE && value > HEAP_MOST)
		value = HEAP_MOST;
	context->limits[limit] = value;
	return driver_leave(CUDA_SUCCESS);
}
