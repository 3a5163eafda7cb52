/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codethreads THREADS ROUNDS: threads of one context load modules, launch kernels with large frames
 * and set the heap at the same time. The driver's memory for that is charged once, whichever thread
 * caused it, and nothing is charged at the end. Exits 0 if so.
 */
#include "code.h"
#include "driver.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB (1ll << 20)
#define SLACK (8 * MIB) /* of the code itself, and the driver's own */
#define MOST 64
#define ARRAY (16 * MIB)
#define FRAME 4096
#define HEAP (256 * (size_t)MIB)
#define FRESH_STACK 1024

static CUcontext context;
static CUmodule held[MOST];
static pthread_barrier_t barrier;
static char *with_array, *with_frames;
static int count, rounds, wrong;
static size_t before;

static void expect(const char *what, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		printf("%s: CUDA error %d\n", what, result);
		__atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
	}
}

static void launch(CUmodule module, const char *name)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	CUfunction function = NULL;

	expect("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
	expect("cuLaunchKernel",
	       cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

static void charged(const char *step, long long bytes)
{
	size_t available = 0, total;
	long long used;

	expect("cuMemGetInfo", cuMemGetInfo_v2(&available, &total));
	used = (long long)before - (long long)available;
	if (llabs(used - bytes) <= SLACK)
		return;
	printf("%s: %lld bytes are charged, %lld are expected\n", step, used, bytes);
	wrong = 1;
}

static void *load_one(void *argument)
{
	uintptr_t me = (uintptr_t)argument;

	expect("cuCtxSetCurrent", cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	expect("cuModuleLoadData", cuModuleLoadData(&held[me], with_array));
	return NULL;
}

static void *launch_one(void *argument)
{
	CUmodule module;

	expect("cuCtxSetCurrent", cuCtxSetCurrent(context));
	expect("cuModuleLoadData", cuModuleLoadData(&module, with_frames));
	pthread_barrier_wait(&barrier);
	launch(module, "frame4096");
	expect("cuCtxSynchronize", cuCtxSynchronize());
	expect("cuModuleUnload", cuModuleUnload(module));
	return argument;
}

static void *set_heap(void *argument)
{
	expect("cuCtxSetCurrent", cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	expect("cuCtxSetLimit", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, HEAP));
	return argument;
}

/* All kinds at once, and memory of another kind beside them. */
static void *storm(void *argument)
{
	static const char *const names[] = {"empty", "frame2048", "frame4096"};
	unsigned int seed = (unsigned int)(uintptr_t)argument;

	expect("cuCtxSetCurrent", cuCtxSetCurrent(context));
	for (int i = 0; i < rounds; i++) {
		bool array = rand_r(&seed) % 2;
		CUdeviceptr pointer;
		CUmodule module;

		expect("cuModuleLoadData",
		       cuModuleLoadData(&module, array ? with_array : with_frames));
		expect("cuMemAlloc", cuMemAlloc_v2(&pointer, 4 * (size_t)MIB));
		launch(module, array ? "empty" : names[rand_r(&seed) % 3]);
		if (rand_r(&seed) % 8 == 0)
			expect("cuCtxSetLimit",
			       cuCtxSetLimit(0, FRESH_STACK * (1 + (size_t)rand_r(&seed) % 4)));
		expect("cuMemFree", cuMemFree_v2(pointer));
		expect("cuModuleUnload", cuModuleUnload(module));
	}
	return NULL;
}

static void all(void *(*run)(void *))
{
	pthread_t threads[MOST];

	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i);
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
	static const size_t frames[] = {2048, FRAME, 0};
	int processors = 0, threads = 0;
	size_t total;

	count = argc > 2 ? atoi(argv[1]) : 8;
	rounds = argc > 2 ? atoi(argv[2]) : 100;
	if (count < 1 || count > MOST || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuCtxSetCurrent(context) ||
	    cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) ||
	    cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0) ||
	    pthread_barrier_init(&barrier, NULL, (unsigned int)count))
		return 1;
	with_array = module_text(ARRAY, NULL);
	with_frames = module_text(0, frames);
	sleep(2); /* for a sample of the context */
	if (cuMemGetInfo_v2(&before, &total))
		return 1;
	for (int round = 0; round < rounds / 10 + 1 && !wrong; round++) {
		all(load_one);
		charged("a module in each thread", count * ARRAY);
		for (int i = 0; i < count; i++)
			expect("cuModuleUnload", cuModuleUnload(held[i]));
		charged("unloaded", 0);
		all(launch_one);
		charged("launched by all", (long long)(FRAME - FRESH_STACK) * processors * threads);
		expect("cuCtxSetLimit", cuCtxSetLimit(0, FRESH_STACK));
		charged("the stack's limit lowered", 0);
		all(set_heap);
		charged("a heap set by all", HEAP);
		expect("cuCtxSetLimit", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
		charged("no heap", 0);
	}
	all(storm);
	expect("cuCtxSynchronize", cuCtxSynchronize());
	expect("cuCtxSetLimit", cuCtxSetLimit(0, FRESH_STACK));
	charged("at the end", 0);
	if (!wrong)
		printf("%d threads: all is charged once, and nothing at the end\n", count);
	return wrong;
}
