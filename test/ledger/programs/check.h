/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this directory share: a page, random numbers, a way to fail. */
#ifndef GPUSLICE_TEST_CHECK_H
#define GPUSLICE_TEST_CHECK_H

#include "ledger.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...)                                                                                  \
	do {                                                                                       \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                    \
		fprintf(stderr, __VA_ARGS__);                                                      \
		fputc('\n', stderr);                                                               \
		exit(1);                                                                           \
	} while (0)

static inline void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		FAIL("mmap of %zu shared bytes failed", size);
	return p;
}

/* In a child: when the parent fails, nothing of the test stays. */
static inline void die_with_parent(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* xorshift64*: the state must not be 0. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static inline uint64_t nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t used_of(const struct ledger *ledger, uint32_t device)
{
	return __atomic_load_n(&ledger->device[device].word.used, __ATOMIC_ACQUIRE);
}

static inline uint64_t generation_of(const struct ledger *ledger, uint32_t lane)
{
	return __atomic_load_n(&ledger->lane[lane].generation, __ATOMIC_ACQUIRE);
}

#endif
