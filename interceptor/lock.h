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
#include <unistd.h>

struct lock {
	uint32_t word; /* 0 open, 1 held, 2 held and somebody sleeps */
};

static inline void lock_take(struct lock *lock)
{
	uint32_t open = 0;

	if (__atomic_compare_exchange_n(&lock->word, &open, 1, false, __ATOMIC_ACQUIRE,
	                                __ATOMIC_RELAXED))
		return;
	while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0)
		syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline bool lock_try(struct lock *lock)
{
	uint32_t open = 0;

	return __atomic_compare_exchange_n(&lock->word, &open, 1, false, __ATOMIC_ACQUIRE,
	                                   __ATOMIC_RELAXED);
}

static inline void lock_give(struct lock *lock)
{
	if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
		syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
