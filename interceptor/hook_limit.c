/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks for cuCtxSetLimit. The driver takes the heap of kernels that call malloc at the first
 * launch of one (driver observation, H100, 580.159.04), too late to refuse it. The heap is
 * therefore charged when its limit is set. The default heap, 8 MiB, is overhead, as is the code
 * that it comes with. Stacks are taken and released at once (stack.h). For the other limits, the
 * driver takes memory when it loads a module that needs it (a printf buffer, 64 MiB at most), or
 * took nothing measurable.
 */
#include "block.h"
#include "context.h"
#include "grant.h"
#include "overhead.h"
#include "stack.h"
#include "table.h"

static CUresult set_stack(size_t value)
{
	struct raise raise;
	CUresult result;

	if (!stack_begin(&raise, value, true))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, value);
	stack_end(&raise);
	/* A smaller stack may return overhead that was charged without an owner. */
	overhead_settle_loose(raise.ordinal);
	return result;
}

static CUresult set_heap(uint64_t context, CUdevice ordinal, size_t value)
{
	uint64_t bytes = block_round(value), more, before;
	struct context known;
	CUresult result;

	(void)context_get(context, &known);
	more = bytes > known.heap ? bytes - known.heap : 0;
	if (more && grant(ordinal, more, KIND_MEMORY, LEDGER_CALL_HEAP) != GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, value);
	if (result != CUDA_SUCCESS) {
		process_recharge(ordinal, more, 0, KIND_MEMORY);
		return result;
	}
	/* Another thread may have set it in the meantime. */
	before = context_set_heap(context, ordinal, bytes);
	process_recharge(ordinal, before + more, bytes, KIND_MEMORY);
	return result;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	uint64_t context = context_current();
	CUdevice ordinal = process_current_ordinal();

	if (context && ordinal >= 0 && limit == CU_LIMIT_MALLOC_HEAP_SIZE)
		return set_heap(context, ordinal, value);
	if (context && ordinal >= 0 && limit == CU_LIMIT_STACK_SIZE)
		return set_stack(value);
	return DRIVER(cuCtxSetLimit)(limit, value);
}
