/* SPDX-License-Identifier: Apache-2.0 */
/* Checks charges by the slice's free bytes, as a program sees them, and prints failed steps. Needs
 * the driver's functions, as functions or as pointers to them. */
#ifndef CHARGED_H
#define CHARGED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static int wrong; /* set by any thread */
static size_t base;

static inline void expect(const char *step, CUresult result, CUresult wanted)
{
	if (result != wanted) {
		printf("%s: CUDA error %d, expected %d\n", step, result, wanted);
		__atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
	}
}

#define OK(call) expect(#call, call, CUDA_SUCCESS)

static inline void must(const char *step, CUresult result)
{
	expect(step, result, CUDA_SUCCESS);
	if (result != CUDA_SUCCESS)
		exit(1);
}

#define MUST(call) must(#call, call)

/* Makes the primary context of the first device current. */
static inline CUcontext use_primary(void)
{
	CUcontext context = NULL;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	return context;
}

static inline size_t left(void)
{
	size_t available = 0, total;

	OK(cuMemGetInfo_v2(&available, &total));
	return available;
}

/* Waits 10 s at most for so many free bytes: driver truth may count something for a moment, and
 * settles exits with a delay. */
static inline bool left_becomes(size_t bytes)
{
	for (int tries = 0; tries < 1000 && left() != bytes; tries++)
		usleep(10000);
	return left() == bytes;
}

static inline void charged(const char *step, unsigned long long bytes)
{
	size_t now = left();

	if (base - now != bytes) {
		printf("%s: %lld bytes are charged, expected %llu\n", step, (long long)(base - now),
		       bytes);
		wrong = 1;
	}
}

#endif
