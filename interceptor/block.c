/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include "hook.h"

/* Block numbers begin at 0, keys do not. */
static uint64_t key_of(CUdeviceptr pointer)
{
	return pointer / BLOCK_BYTES + 1;
}

static uint32_t *present(struct process *process, uint64_t key)
{
	return &process->blocks_present[key % PROCESS_PRESENT];
}

static void count_present(struct process *process, uint64_t key, uint32_t by)
{
	__atomic_fetch_add(present(process, key), by, __ATOMIC_RELAXED);
}

uint64_t block_round(uint64_t bytes)
{
	if (bytes > UINT64_MAX - BLOCK_BYTES)
		return UINT64_MAX;
	return (bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
}

/* Remember what is charged already. If there is no memory for that it stays charged until the
 * process ends: too much rather than too little. */
static void put(struct process *process, uint64_t key, struct map_value value)
{
	bool full;

	if (map_use_or_put(&process->blocks, key, value, &full))
		count_present(process, key, 1);
	else if (!full) /* the driver packed it into a block that was charged already */
		process_release(value.ordinal, value.bytes);
}

enum charge_result block_took_small(CUdeviceptr pointer, CUdevice ordinal)
{
	struct process *process = process_get();
	uint64_t key = key_of(pointer);
	struct map_value value;
	enum charge_result result;

	if (map_use(&process->blocks, key, 1, &value))
		return CHARGE_OK;
	result = process_charge(ordinal, BLOCK_BYTES, "a block of small allocations");
	if (result == CHARGE_OK)
		put(process, key,
		    (struct map_value){.bytes = BLOCK_BYTES,
		                       .owner = current_owner(),
		                       .ordinal = ordinal,
		                       .uses = 1});
	return result;
}

void block_took(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes)
{
	struct process *process = process_get();
	struct map_value stale;

	/* One that takes several blocks shares none of them: something at this address went without
	 * our notice. */
	if (bytes > BLOCK_BYTES && map_take(&process->blocks, key_of(pointer), &stale)) {
		count_present(process, key_of(pointer), UINT32_MAX);
		process_release(stale.ordinal, stale.bytes);
	}
	put(process, key_of(pointer),
	    (struct map_value){
	        .bytes = bytes, .owner = current_owner(), .ordinal = ordinal, .uses = 1});
}

bool block_leave(CUdeviceptr pointer, struct map_value *value)
{
	struct process *process = process_get();
	uint64_t key = key_of(pointer);

	if (!process || !map_use(&process->blocks, key, -1, value))
		return false;
	if (value->uses == 0)
		count_present(process, key, UINT32_MAX);
	return true;
}

void block_left(CUdeviceptr pointer, struct map_value value, CUresult result)
{
	if (result == CUDA_SUCCESS) {
		if (value.uses == 0)
			process_release(value.ordinal, value.bytes);
		return;
	}
	/* If others hold the block its charge is theirs too; if they left meanwhile, they gave it
	 * back. */
	if (value.uses != 0)
		process_charge_anyway(value.ordinal, value.bytes);
	value.uses = 1;
	put(process_get(), key_of(pointer), value);
}

bool block_maybe(CUdeviceptr pointer)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);

	return process && __atomic_load_n(present(process, key_of(pointer)), __ATOMIC_RELAXED) != 0;
}

struct gone {
	struct process *process;
	uint64_t owner;
	uint64_t *bytes;
};

static bool belongs(void *data, uint64_t key, struct map_value *value)
{
	struct gone *gone = data;

	if (value->owner != gone->owner)
		return false;
	gone->bytes[value->ordinal] += value->bytes;
	count_present(gone->process, key, UINT32_MAX);
	return true;
}

void block_owner_gone(struct process *process, uint64_t owner, uint64_t *bytes)
{
	struct gone gone = {.process = process, .owner = owner, .bytes = bytes};

	map_sweep(&process->blocks, belongs, &gone);
}
