/* SPDX-License-Identifier: Apache-2.0 */
#include "stack.h"

#include "grant.h"
#include "overhead.h"
#include "quiet.h"
#include "state.h"
#include "table.h"

/* CUdevice_attribute */
enum {
	MULTIPROCESSORS = 16,
	THREADS_PER_MULTIPROCESSOR = 39,
};

/* Returns how many threads the device can hold at one time; 0 if unknown. */
static uint64_t threads_of(CUdevice ordinal)
{
	static uint32_t known[PROCESS_ORDINALS]; /* constant for a device */
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

/* Returns the current context's stack size in bytes per thread; 0 if unknown. */
static uint64_t stack_size(void)
{
	size_t bytes = 0;

	if (!DRIVER_HAS(cuCtxGetLimit) ||
	    DRIVER(cuCtxGetLimit)(&bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS)
		return 0;
	return bytes;
}

/* Returns the device memory for that stack size, beyond a new context's. */
static uint64_t memory_of(uint64_t bytes, CUdevice ordinal)
{
	uint64_t all;

	if (bytes <= STACK_DEFAULT)
		return 0;
	bytes = (bytes + STACK_UNIT - 1) & ~(uint64_t)(STACK_UNIT - 1);
	return __builtin_mul_overflow(bytes - STACK_DEFAULT, threads_of(ordinal), &all) ? UINT64_MAX
	                                                                                : all;
}

/* Charges what the context is not charged for yet. Called with the lock held. */
static bool charge(struct raise *raise, uint64_t context, uint64_t bytes)
{
	struct context known;
	uint64_t more;

	(void)context_get(context, &known);
	more = bytes > known.stack_bytes ? bytes - known.stack_bytes : 0;
	if (more && grant(raise->ordinal, more, KIND_OVERHEAD, LEDGER_CALL_STACK) != GRANTED)
		return false;
	context_raise_begin(context, raise->ordinal, more);
	raise->context = context;
	return true;
}

bool stack_begin(struct raise *raise, uint64_t bytes, bool set)
{
	struct lock *lock = &state_get()->contexts.stack_lock;
	uint64_t before, context;
	bool fits = true;

	*raise = (struct raise){.ordinal = process_current_ordinal()};
	if (raise->ordinal < 0 || raise->ordinal >= PROCESS_ORDINALS || !threads_of(raise->ordinal))
		return true;
	context = context_current();
	QUIETLY; /* the driver is called with the lock held */
	LOCKED(lock);
	before = stack_size();
	if (before && (set || bytes > before)) {
		overhead_change_begin(raise->ordinal);
		fits = charge(raise, context, memory_of(bytes, raise->ordinal));
		if (!fits)
			overhead_change_end(raise->ordinal);
	} else if (before) {
		context_set_stack(context, raise->ordinal, (uint32_t)before);
	}
	return fits;
}

void stack_end(const struct raise *raise)
{
	struct lock *lock = &state_get()->contexts.stack_lock;
	uint64_t now, before, after;
	struct quiet quiet;

	if (!raise->context)
		return;
	quiet = quiet_begin();
	lock_take(lock);
	now = stack_size();
	if (context_raise_end(raise->context, (uint32_t)now, memory_of(now, raise->ordinal),
	                      &before, &after))
		process_recharge(raise->ordinal, before, after, KIND_OVERHEAD);
	lock_give(lock);
	quiet_end(quiet);
	overhead_change_end(raise->ordinal);
}
