/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mutex for the threads of one process, in its own memory. (Not glibc's: symbol versions of its
 * newer functions differ between releases, and a forked child must find every lock open. Here open
 * is zero, and the memory is cleared at fork.)
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
	uint32_t sleepers; /* threads waiting for it */
};

/* Maximum sleep: see lock_give(). */
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

/* No barrier before the read of `sleepers`: it would cost as much as the lock. A thread that starts
 * to sleep at that moment is not woken, and retries after LOCK_NAP. */
static inline void lock_give(struct lock *lock)
{
	__atomic_store_n(&lock->word, 0, __ATOMIC_RELEASE);
	if (__builtin_expect(__atomic_load_n(&lock->sleepers, __ATOMIC_RELAXED) != 0, 0))
		lock_wake(lock);
}

static inline struct lock *lock_begin(struct lock *lock)
{
	lock_take(lock);
	return lock;
}

static inline void lock_end(struct lock **lock)
{
	lock_give(*lock);
}

/* Holds a lock from here to the end of the block. */
#define LOCKED(which) struct lock *locked __attribute__((cleanup(lock_end))) = lock_begin(which)

#endif
