/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <stdio.h>

#define LIVE_BYTES 1024

static void alloc_linear(void)
{
	CUdeviceptr p;

	CALL(cuMemAlloc, &p, LIVE_BYTES);
}

static void alloc_async(void)
{
	CUdeviceptr p;

	CALL(cuMemAllocAsync, &p, LIVE_BYTES, NULL);
}

static void series(const struct call *call, void (*one_more)(void), long most, double milliseconds)
{
	long live = 0;

	for (long goal = 1; goal <= most; goal *= 10) {
		struct cost cost;

		/* By the program's way: the interceptor knows the counted allocations. */
		while (live < goal) {
			one_more();
			live++;
		}
		must(way->cuCtxSynchronize(), "cuCtxSynchronize");
		cost = measure(call, milliseconds);
		printf("{\"live\":%ld,", live);
		print_cost(call, &cost);
		printf("}\n");
		fflush(stdout);
	}
}

void live_measure(long most, double milliseconds)
{
	driver_begin();
	/* They stay until the process exits. The pool's come first, since there are fewer. */
	series(&call_async, alloc_async, most / 10, milliseconds);
	series(&call_small_pair, alloc_linear, most, milliseconds);
}
