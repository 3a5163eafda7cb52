/* SPDX-License-Identifier: Apache-2.0 */
#include "limit.h"

#include "overhead.h"

#include <string.h>

/* CUlimit, besides those of interceptor/cuda_abi.h */
enum {
	DEV_RUNTIME_SYNC_DEPTH = 3, /* absent on cards since compute capability 9.0 */
	PENDING_LAUNCHES = 4,
	PERSISTING_L2 = 6,
	CIG_SHMEM_FALLBACK = 9,
};

/* Observed: the limit on pending launches after a request for 2^20, and the unit of the L2 cache's
 * part. */
#define PENDING_MOST 599186
#define L2_STEP 3276800

#define STACK_FIRST 1024
#define STACK_UNIT 16

/* Observed: the card holds this for a FIFO of 512 MiB, and nothing visible for the default one. The
 * module that caused it holds 2 MiB more, which end with the module. */
#define FIFO_BACKED (62 * MiB)
#define FIFO_CODE (2 * MiB)
#define FIFO_LARGE (64 * MiB)

#define HEAP_STEP (2 * MiB)
#define HEAP_OVERHEAD (2 * MiB)
/* Observed once, for a request of 200 GiB: the size of a larger heap. Its derivation is unknown. */
#define HEAP_MOST 17681179680ull

/* An H100's values: stack, printf FIFO, malloc heap, -, pending launches, L2 fetch, L2 persisting,
 * shared memory, CUDA in graphics, -. */
static const size_t defaults[LIMITS] = {STACK_FIRST, 8650752, 8388608, 0, 2048,
                                        64,          9830400, 232448,  0, 0};

void limits_start(CUcontext context)
{
	memcpy(context->limits, defaults, sizeof(defaults));
	context->heap_taken = false;
	context->fifo_taken = false;
	context->fifo_backed = false;
	overhead_start(context, STACK_FIRST);
}

/* A possible size, so that rounding it up is safe. */
static CUresult set_stack(CUcontext context, uint64_t bytes)
{
	bytes = round_up(bytes, STACK_UNIT);
	TRY(overhead_set_stack(context, bytes));
	context->limits[CU_LIMIT_STACK_SIZE] = bytes;
	return CUDA_SUCCESS;
}

CUresult limit_fit_stack(CUcontext context, uint64_t frame)
{
	context = context_holder(context);
	if (frame <= context->limits[CU_LIMIT_STACK_SIZE])
		return CUDA_SUCCESS;
	if (!overhead_stack_exists(context, frame))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return set_stack(context, frame);
}

CUresult limit_take_heap(CUcontext context)
{
	uint64_t bytes;

	context = context_holder(context);
	if (context->heap_taken)
		return CUDA_SUCCESS;
	bytes = context->limits[CU_LIMIT_MALLOC_HEAP_SIZE];
	if (bytes > device_capacity(context->device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = round_up(bytes, HEAP_STEP) + HEAP_OVERHEAD;
	if (overhead_keep(context, bytes) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->heap_taken = true;
	return CUDA_SUCCESS;
}

void limit_take_fifo(CUcontext context)
{
	context_holder(context)->fifo_taken = true;
}

CUresult limit_back_fifo(CUcontext context, uint64_t *code)
{
	*code = 0;
	context = context_holder(context);
	if (context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] <= FIFO_LARGE || context->fifo_backed)
		return CUDA_SUCCESS;
	if (overhead_take_code(context, FIFO_CODE) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (overhead_keep(context, FIFO_BACKED) != CUDA_SUCCESS) {
		overhead_give_code(context, FIFO_CODE);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context->fifo_backed = true;
	*code = FIFO_CODE;
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success. */
static CUresult enter_limit(int limit, CUcontext *context)
{
	TRY(driver_enter_context(context));
	*context = context_holder(*context);
	if (limit < 0 || limit >= LIMITS)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (limit == DEV_RUNTIME_SYNC_DEPTH || limit == CIG_SHMEM_FALLBACK)
		return driver_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext context;

	DRIVER_ENTER_BY(enter_limit(limit, &context));
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

static bool is_in_use(const struct CUctx_st *context, int limit)
{
	return (limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap_taken) ||
	       (limit == CU_LIMIT_PRINTF_FIFO_SIZE && context->fifo_taken);
}

static size_t granted(int limit, size_t value)
{
	switch (limit) {
	case CU_LIMIT_MALLOC_HEAP_SIZE:
		return value < HEAP_MOST ? value : HEAP_MOST;
	case PENDING_LAUNCHES:
		return value < PENDING_MOST ? value : PENDING_MOST;
	case PERSISTING_L2:
		return round_up(value, L2_STEP);
	default:
		return value;
	}
}

/* Stacks are taken at once. The others accept any value until a kernel needs the memory. */
CUDA_API CUresult cuCtxSetLimit(int limit, size_t value)
{
	CUcontext context;

	DRIVER_ENTER_BY(enter_limit(limit, &context));
	if (is_in_use(context, limit))
		return CUDA_ERROR_INVALID_VALUE;
	if (limit == CU_LIMIT_STACK_SIZE)
		return overhead_stack_exists(context, value) ? set_stack(context, value)
		                                             : CUDA_ERROR_INVALID_VALUE;
	context->limits[limit] = granted(limit, value);
	return CUDA_SUCCESS;
}
