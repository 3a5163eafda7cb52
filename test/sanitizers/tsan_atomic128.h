/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces interceptor/atomic128.h in builds with the thread sanitizer, which include this first.
 * The sanitizer does not see inside assembly, and its own 16-byte compare-and-swap takes a
 * process-local lock, but the ledger is shared between processes. So this is the same instruction,
 * and a release and an acquire tell the sanitizer that it orders memory accesses. x86-64 only.
 */
#ifndef GPUSLICE_ATOMIC128_H
#define GPUSLICE_ATOMIC128_H

#include <sanitizer/tsan_interface.h>
#include <stdbool.h>
#include <stdint.h>

__extension__ typedef unsigned __int128 atomic128_word;

static inline bool atomic128_swap(uint64_t *word, uint64_t expected[2], uint64_t low, uint64_t high)
{
	bool swapped;

	__tsan_release(word);
	__asm__ __volatile__("lock cmpxchg16b %1"
	                     : "=@ccz"(swapped), "+m"(*(atomic128_word *)(void *)word),
	                       "+a"(expected[0]), "+d"(expected[1])
	                     : "b"(low), "c"(high)
	                     : "memory");
	__tsan_acquire(word);
	return swapped;
}

#endif
