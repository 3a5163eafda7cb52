/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for the threads of one process: a word in the process's own memory, which dies with
 * it. No other process ever waits for it. (glibc's would do, but the symbol versions of its
 * newer functions differ between releases, and a forked child must find every lock open: here
 * open is zero, and the memory is wiped at fork.)
 */
#ifndef GPUSLICE_LOCK_H
#define GPUSLICE_LOCK_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct lock {
	uint32_t word;     /* 0 open, 1 held */
	uint32_t sleepers; /* threads that wait for it to open */
};

/* How long a sleeper sleeps at most: see lock_give(). */
#define LOCK_NAP 1000000 /* nanoseconds */

static inline bool lock_try(struct lock *lock)
{
	return __atomic_exchange_n(&lock->word, 1, __ATOMIC_ACQUIRE) == 0;
}

static __attribute__((cold, noinline, unused)) void lock_wait(struct lock *lock)
{
	struct timespec nap = {.tv_nsec = LOCK_NAP};

	__atomic_fetch_add(&lock->sleepers, 1, __ATOMIC_SEQ_CST);
	while (!lock_try(lock))
		syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 1, &nap, NULL, 0);
	__atomic_fetch_sub(&lock->sleepers, 1, __ATOMIC_RELAXED);
}

static __attribute__((cold, noinline, unused)) void lock_wake(struct lock *lock)
{
	syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static inline void lock_take(struct lock *lock)
{
	if (__builtin_expect(!lock_try(lock), 0))
		lock_wait(lock);
}

/*
 * No barrier stands between opening the lock and looking for sleepers: it would cost as much as
 * the lock. A thread that goes to sleep in just that moment is not woken, and looks again after its
 * nap.
 */
static inline void lock_give(struct lock *lock)
{
	__atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
	if (__builtin_expect(__atomic_load_n(&lock->sleepers, __ATOMIC_RELAXED) != 0, 0))
		lock_wake(lock);
}

#endif
