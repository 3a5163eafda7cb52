/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codethreads THREADS ROUNDS: threads of one context load modules, launch kernels with large frames
 * and set the heap at the same time. The driver's memory for that is charged once, whichever thread
 * caused it, and nothing is charged at the end. Exits 0 if so.
 */
#include "code.h"
#include "driver.h"

#include "charged.h"

#include <pthread.h>
#include <stdint.h>

#define SLACK (8 * (long long)MIB) /* of the code itself, and the driver's own */
#define MOST 64
#define ARRAY (16 * MIB)
#define FRAME 4096
#define HEAP (256 * MIB)
#define FRESH_STACK 1024

static CUcontext context;
static CUmodule held[MOST];
static pthread_barrier_t barrier;
static char *with_array, *with_frames;
static int count, rounds;

static void launch(CUmodule module, const char *name)
{
	CUfunction function = NULL;

	OK(cuModuleGetFunction(&function, module, name));
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

static void charged_about(const char *step, long long bytes)
{
	long long used = (long long)base - (long long)left();

	if (llabs(used - bytes) <= SLACK)
		return;
	printf("%s: %lld bytes are charged, %lld are expected\n", step, used, bytes);
	wrong = 1;
}

static void *load_one(void *argument)
{
	uintptr_t me = (uintptr_t)argument;

	OK(cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	OK(cuModuleLoadData(&held[me], with_array));
	return NULL;
}

static void *launch_one(void *argument)
{
	CUmodule module;

	OK(cuCtxSetCurrent(context));
	OK(cuModuleLoadData(&module, with_frames));
	pthread_barrier_wait(&barrier);
	launch(module, "frame4096");
	OK(cuCtxSynchronize());
	OK(cuModuleUnload(module));
	return argument;
}

static void *set_heap(void *argument)
{
	OK(cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, HEAP));
	return argument;
}

/* All kinds at once, and memory of another kind beside them. */
static void *storm(void *argument)
{
	static const char *const names[] = {"empty", "frame2048", "frame4096"};
	unsigned int seed = (unsigned int)(uintptr_t)argument;

	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < rounds; i++) {
		bool array = rand_r(&seed) % 2;
		CUdeviceptr pointer;
		CUmodule module;

		OK(cuModuleLoadData(&module, array ? with_array : with_frames));
		OK(cuMemAlloc_v2(&pointer, 4 * MIB));
		launch(module, array ? "empty" : names[rand_r(&seed) % 3]);
		if (rand_r(&seed) % 8 == 0)
			OK(cuCtxSetLimit(0, FRESH_STACK * (1 + (size_t)rand_r(&seed) % 4)));
		OK(cuMemFree_v2(pointer));
		OK(cuModuleUnload(module));
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

	count = argc > 2 ? atoi(argv[1]) : 8;
	rounds = argc > 2 ? atoi(argv[2]) : 100;
	context = use_primary();
	if (count < 1 || count > MOST || pthread_barrier_init(&barrier, NULL, (unsigned int)count))
		return 1;
	with_array = module_text(ARRAY, NULL);
	with_frames = module_text(0, frames);
	sleep(2); /* for a sample of the context */
	base = left();
	for (int round = 0; round < rounds / 10 + 1 && !wrong; round++) {
		all(load_one);
		charged_about("a module in each thread", count * (long long)ARRAY);
		for (int i = 0; i < count; i++)
			OK(cuModuleUnload(held[i]));
		charged_about("unloaded", 0);
		all(launch_one);
		charged_about("launched by all", (FRAME - FRESH_STACK) * card_threads());
		OK(cuCtxSetLimit(0, FRESH_STACK));
		charged_about("the stack's limit lowered", 0);
		all(set_heap);
		charged_about("a heap set by all", HEAP);
		OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
		charged_about("no heap", 0);
	}
	all(storm);
	OK(cuCtxSynchronize());
	OK(cuCtxSetLimit(0, FRESH_STACK));
	charged_about("at the end", 0);
	if (!wrong)
		printf("%d threads: all is charged once, and nothing at the end\n", count);
	return wrong;
}
