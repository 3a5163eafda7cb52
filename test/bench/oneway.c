/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

void oneway_measure_start(void)
{
	int64_t begun = now();
	CUcontext made;

	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &made, 0);
	printf("{\"call\":\"cuInit + first context\",\"slice_ns\":%lld}\n",
	       (long long)(now() - begun));
}

static int (*cudaMallocAsync)(void **, size_t, CUstream);
static int (*cudaFreeAsync)(void *, CUstream);

static void runtime_async(int i)
{
	void *p;

	(void)i;
	must(cudaMallocAsync(&p, 1u << 20, NULL), "cudaMallocAsync");
	must(cudaFreeAsync(p, NULL), "cudaFreeAsync");
}

static void wait_for_all(int n)
{
	(void)n;
	must(way->cuCtxSynchronize(), "cuCtxSynchronize");
}

void oneway_measure_runtime(double milliseconds)
{
	static const char *const names[] = {"libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so",
	                                    "libcudart.so.12"};
	static const struct call call = {.name = "cudaMallocAsync + cudaFreeAsync 1 MiB, warm",
	                                 .once = runtime_async,
	                                 .after = wait_for_all};
	void *runtime = NULL;
	struct cost cost;

	for (size_t i = 0; !runtime && i < sizeof(names) / sizeof(*names); i++)
		runtime = dlopen(names[i], RTLD_NOW);
	if (!runtime)
		return;
	driver_find_program(runtime, "cudaMallocAsync", &cudaMallocAsync);
	driver_find_program(runtime, "cudaFreeAsync", &cudaFreeAsync);
	driver_begin();
	cost = measure_one_way(&call, milliseconds);
	printf("{");
	print_cost(&call, &cost);
	printf("}\n");
}
