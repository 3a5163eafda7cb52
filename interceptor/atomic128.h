/* SPDX-License-Identifier: Apache-2.0 */
/* A compare-and-swap of 16 bytes. The compiler's own (__atomic_compare_exchange_16) calls
 * libatomic, which may use a lock that other processes do not share; and the interceptor depends on
 * libc only. */
#ifndef GPUSLICE_ATOMIC128_H
#define GPUSLICE_ATOMIC128_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
__extension__ typedef unsigned __int128 atomic128_word;
#endif

/* If word[0..1] equals expected[0..1], set it to {low, high} and return true; else load it into
 * expected and return false. Sequentially consistent. `word` is aligned to 16. */
static inline bool atomic128_swap(uint64_t *word, uint64_t expected[2], uint64_t low, uint64_t high)
{
#if defined(__x86_64__)
	bool swapped;

	__asm__ __volatile__("lock cmpxchg16b %1"
	                     : "=@ccz"(swapped), "+m"(*(atomic128_word *)(void *)word),
	                       "+a"(expected[0]), "+d"(expected[1])
	                     : "b"(low), "c"(high)
	                     : "memory");
	return swapped;
#elif defined(__aarch64__)
	uint64_t seen_low, seen_high;
	uint32_t failed;

	/* Every ARMv8 has exclusive pairs, but not CASP. A failed comparison must store what it
	 * read: only a successful store shows that the pair was read in one piece. */
	__asm__ __volatile__("1: ldaxp %0, %1, [%3]\n"
	                     "   cmp %0, %4\n"
	                     "   ccmp %1, %5, #0, eq\n"
	                     "   b.ne 2f\n"
	                     "   stlxp %w2, %6, %7, [%3]\n"
	                     "   cbnz %w2, 1b\n"
	                     "   b 3f\n"
	                     "2: stlxp %w2, %0, %1, [%3]\n"
	                     "   cbnz %w2, 1b\n"
	                     "   mov %w2, #2\n"
	                     "3: dmb ish\n"
	                     : "=&r"(seen_low), "=&r"(seen_high), "=&r"(failed)
	                     : "r"(word), "r"(expected[0]), "r"(expected[1]), "r"(low), "r"(high)
	                     : "cc", "memory");
	expected[0] = seen_low;
	expected[1] = seen_high;
	return failed == 0;
#else
#error "gpuslice runs on x86-64 and aarch64"
#endif
}

#endif
