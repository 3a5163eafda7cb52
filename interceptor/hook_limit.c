/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuCtxSetLimit. The heap of kernels that call malloc is taken at the first launch of one (driver
 * observation, H100, 580.159.04), when it is too late to refuse; so it is charged when it is set.
 * The default heap, 8 MiB, is overhead like the code that it comes with. Stacks are overhead, too:
 * how much they take depends on the kernels. The buffer of printf took no device memory.
 */
#include "block.h"
#include "hook.h"

/* The heap of a context is kept beside its pointers; no handle has an odd value. */
static uint64_t heap_key(uint64_t context)
{
	return context | 1;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
	struct process *process = process_get();
	uint64_t context, bytes, before = 0;
	struct map_value heap = {0};
	CUdevice ordinal;
	CUresult result;

	context = current_owner();
	ordinal = process_current_ordinal();
	if (limit != CU_LIMIT_MALLOC_HEAP_SIZE || !process || !context || ordinal < 0)
		return DRIVER(cuCtxSetLimit)(limit, value);
	bytes = block_round(value);
	if (map_get(&process->pointers, heap_key(context), &heap))
		before = heap.bytes;
	if (bytes > before &&
	    process_charge(ordinal, bytes - before, "the heap of kernels") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuCtxSetLimit)(limit, value);
	if (result != CUDA_SUCCESS) {
		if (bytes > before)
			process_release(ordinal, bytes - before);
		return result;
	}
	heap = (struct map_value){.bytes = bytes, .owner = context, .ordinal = ordinal};
	(void)map_put(&process->pointers, heap_key(context), heap);
	if (bytes < before)
		process_release(ordinal, before - bytes);
	return result;
}
