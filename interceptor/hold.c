/* SPDX-License-Identifier: Apache-2.0 */
#include "hook.h"

#include "block.h"

uint64_t current_owner(void)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct map_value value;
	CUcontext context = NULL;

	if (!DRIVER_HAS(cuCtxGetCurrent) || DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		return 0;
	/* What is allocated in a green context is its primary context's. */
	if (process && __atomic_load_n(&process->green, __ATOMIC_RELAXED) &&
	    map_get(&process->contexts, (uint64_t)(uintptr_t)context, &value) && value.owner)
		return value.owner;
	return (uint64_t)(uintptr_t)context;
}

CUresult held_or_released(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes)
{
	struct process *process = process_get();
	struct map_value value = {.bytes = bytes, .ordinal = ordinal};

	if (result != CUDA_SUCCESS) {
		process_release(ordinal, bytes);
	} else if (process) {
		value.owner = current_owner();
		(void)map_put(&process->pointers, key, value);
		process_count(ordinal);
	}
	return result;
}

bool unhold(uint64_t key, struct map_value *value)
{
	struct process *process = process_get();

	return process && map_take(&process->pointers, key, value);
}

CUresult released_or_held(CUresult result, uint64_t key, struct map_value value)
{
	struct process *process = process_get();

	if (result == CUDA_SUCCESS)
		process_release(value.ordinal, value.bytes);
	else if (process)
		(void)map_put(&process->pointers, key, value);
	return result;
}

struct gone {
	uint64_t owner;
	uint64_t bytes[PROCESS_ORDINALS];
};

static bool belongs(void *data, uint64_t key, struct map_value *value)
{
	struct gone *gone = data;

	(void)key;
	if (value->owner != gone->owner)
		return false;
	gone->bytes[value->ordinal] += value->bytes;
	return true;
}

void owner_gone(uint64_t owner)
{
	struct process *process = process_get();
	struct gone gone = {.owner = owner};

	if (!process || !owner)
		return;
	map_sweep(&process->pointers, belongs, &gone);
	block_owner_gone(process, owner, gone.bytes);
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++) {
		if (gone.bytes[ordinal])
			process_release(ordinal, gone.bytes[ordinal]);
	}
}
