/* SPDX-License-Identifier: Apache-2.0 */
#include "stack.h"

#include "grant.h"
#include "table.h"

/* CUdevice_attribute */
enum {
	MULTIPROCESSORS = 16,
	THREADS_PER_MULTIPROCESSOR = 39,
};

/* How many threads the device can hold at one time, 0 if nobody knows. */
static uint64_t threads_of(CUdevice ordinal)
{
	static uint32_t known[PROCESS_ORDINALS]; /* they cannot change */
	uint32_t threads = __atomic_load_n(&known[ordinal], __ATOMIC_RELAXED);
	int processors = 0, each = 0;

	if (threads || !DRIVER_HAS(cuDeviceGetAttribute))
		return threads;
	if (DRIVER(cuDeviceGetAttribute)(&processors, MULTIPROCESSORS, ordinal) == CUDA_SUCCESS &&
	    DRIVER(cuDeviceGetAttribute)(&each, THREADS_PER_MULTIPROCESSOR, ordinal) ==
	        CUDA_SUCCESS)
		threads = (uint32_t)processors * (uint32_t)each;
	__atomic_store_n(&known[ordinal], threads, __ATOMIC_RELAXED);
	return threads;
}

/* The current context's, in bytes per thread. */
static uint64_t room(void)
{
	size_t bytes = 0;

	if (!DRIVER_HAS(cuCtxGetLimit) ||
	    DRIVER(cuCtxGetLimit)(&bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

bool stack_begin(struct raise *raise, uint64_t bytes)
{
	uint64_t before, more = 0;

	*raise = (struct raise){.ordinal = process_current_ordinal()};
	if (raise->ordinal < 0 || raise->ordinal >= PROCESS_ORDINALS)
		return true;
	before = room();
	if (!before || !threads_of(raise->ordinal))
		return true;
	bytes = (bytes + STACK_UNIT - 1) & ~(uint64_t)(STACK_UNIT - 1);
	if (bytes > before &&
	    __builtin_mul_overflow(bytes - before, threads_of(raise->ordinal), &more))
		more = UINT64_MAX;
	if (more && grant(raise->ordinal, more, KIND_OVERHEAD, ATTACH_CALL_STACK) != GRANTED)
		return false;
	raise->context = context_current();
	raise->charged = more;
	return true;
}

void stack_end(const struct raise *raise)
{
	uint64_t now, bytes, before;

	if (!raise->context)
		return;
	now = room();
	bytes = now > STACK_DEFAULT ? (now - STACK_DEFAULT) * threads_of(raise->ordinal) : 0;
	/* Two threads may have raised it at the same time. */
	before = context_set_stack(raise->context, raise->ordinal, (uint32_t)now, bytes);
	if (bytes > before + raise->charged)
		process_charge_anyway(raise->ordinal, bytes - before - raise->charged,
		                      KIND_OVERHEAD);
	else if (bytes < before + raise->charged)
		process_release(raise->ordinal, before + raise->charged - bytes, KIND_OVERHEAD);
}
