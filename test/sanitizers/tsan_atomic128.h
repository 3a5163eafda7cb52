/* SPDX-License-Identifier: Apache-2.0 */
/*
 * interceptor/atomic128.h for the thread sanitizer, included before it. The sanitizer does not look
 * into assembly, and its own swap of 16 bytes takes a lock of one process, where others swap
 * without; so it is the same instruction, with a word to the sanitizer that it orders what the
 * threads did before and do after.
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
