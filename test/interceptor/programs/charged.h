/* SPDX-License-Identifier: Apache-2.0 */
/* Checks charges by the slice's free bytes, as a program sees them, and prints failed steps. Needs
 * a cuMemGetInfo_v2, as a function or as a pointer to one. */
#ifndef CHARGED_H
#define CHARGED_H

#include <stdio.h>

static int wrong;
static size_t base;

static void expect(const char *step, CUresult result, CUresult wanted)
{
	if (result != wanted) {
		printf("%s: CUDA error %d, expected %d\n", step, result, wanted);
		wrong = 1;
	}
}

static size_t left(void)
{
	size_t available = 0, total;

	expect("cuMemGetInfo", cuMemGetInfo_v2(&available, &total), CUDA_SUCCESS);
	return available;
}

static void charged(const char *step, unsigned long long bytes)
{
	size_t now = left();

	if (base - now != bytes) {
		printf("%s: %lld bytes are charged, expected %llu\n", step, (long long)(base - now),
		       bytes);
		wrong = 1;
	}
}

#endif
