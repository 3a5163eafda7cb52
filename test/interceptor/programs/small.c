/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small SECONDS: makes and frees small allocations without a pause, and checks the slice's free
 * bytes after each. A small allocation is charged after the driver's call (block.h): nothing else
 * may charge the driver's bytes before that. Exits 0 if each check was exact.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)

static void must(CUresult result)
{
	if (result != CUDA_SUCCESS) {
		printf("CUDA error %d\n", result);
		exit(1);
	}
}

static size_t left(void)
{
	size_t available, total;

	must(cuMemGetInfo_v2(&available, &total));
	return available;
}

/* The free bytes once they are stable: a context is charged a moment after its creation. */
static size_t settled(void)
{
	size_t now = left();

	for (int same = 0; same < 50; same++) {
		size_t before = now;

		usleep(10 * 1000);
		now = left();
		if (now != before)
			same = 0;
	}
	return now;
}

int main(int argc, char **argv)
{
	unsigned long looks = 0, wrong = 0;
	CUcontext context;
	size_t base;
	time_t end;

	must(cuInit(0));
	must(cuDevicePrimaryCtxRetain(&context, 0));
	must(cuCtxSetCurrent(context));
	base = settled();
	end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	while (time(NULL) < end) {
		CUdeviceptr first, second;

		must(cuMemAlloc_v2(&first, MIB));
		must(cuMemAlloc_v2(&second, MIB)); /* in the same block */
		looks++;
		if (base - left() != 2 * MIB)
			wrong++;
		must(cuMemFree_v2(first));
		must(cuMemFree_v2(second));
	}
	printf("%lu looks, %lu wrong\n", looks, wrong);
	return looks == 0 || wrong != 0;
}
