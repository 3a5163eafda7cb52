/* SPDX-License-Identifier: Apache-2.0 */
/*
 * current ROUNDS POOLS: one thread changes the device's current pool while a second allocates from
 * the current pool, with POOLS other pools. A later allocation is charged to the pool that it makes
 * grow. Exits 0 if so.
 */
#include "driver.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1ull << 20)

static pthread_barrier_t barrier;
static CUcontext context;
static CUmemoryPool usual, other;
static int rounds;

static void must(const char *what, CUresult result)
{
	if (result != CUDA_SUCCESS) {
		printf("%s: CUDA error %d\n", what, result);
		exit(1);
	}
}

static size_t left(void)
{
	size_t available, total;

	must("cuMemGetInfo", cuMemGetInfo_v2(&available, &total));
	return available;
}

static void keep_all(CUmemoryPool pool)
{
	uint64_t all = UINT64_MAX;

	must("cuMemPoolSetAttribute",
	     cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void use(void)
{
	CUdeviceptr pointer;

	must("cuMemAllocAsync", cuMemAllocAsync(&pointer, MIB, NULL));
	must("cuMemFreeAsync", cuMemFreeAsync(pointer, NULL));
}

static void *allocate(void *argument)
{
	must("cuCtxSetCurrent", cuCtxSetCurrent(context));
	for (int i = 0; i < rounds; i++) {
		pthread_barrier_wait(&barrier);
		use();
		pthread_barrier_wait(&barrier);
	}
	return argument;
}

int main(int argc, char **argv)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	pthread_t thread;
	int pools = argc > 2 ? atoi(argv[2]) : 0, wrong = 0;

	rounds = argc > 1 ? atoi(argv[1]) : 1;
	must("cuInit", cuInit(0));
	must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	must("cuCtxSetCurrent", cuCtxSetCurrent(context));
	must("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&usual, 0));
	keep_all(usual);
	use();
	must("cuCtxSynchronize", cuCtxSynchronize());
	/* With more pools the interceptor searches longer for the right one. */
	for (int i = 0; i < pools; i++)
		must("cuMemPoolCreate", cuMemPoolCreate(&other, &properties));
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, allocate, NULL);
	for (int i = 0; i < rounds; i++) {
		size_t before;

		must("cuMemPoolCreate", cuMemPoolCreate(&other, &properties));
		keep_all(other);
		must("cuDeviceSetMemPool", cuDeviceSetMemPool(0, usual));
		before = left();
		pthread_barrier_wait(&barrier);
		for (volatile int wait = i % 64 * 32; wait > 0; wait--)
			;
		must("cuDeviceSetMemPool", cuDeviceSetMemPool(0, other));
		pthread_barrier_wait(&barrier);
		use();
		if (left() >= before) {
			printf("round %d: the other pool grew, and nothing was charged\n", i);
			wrong++;
		}
		must("cuDeviceSetMemPool", cuDeviceSetMemPool(0, usual));
		must("cuCtxSynchronize", cuCtxSynchronize());
		must("cuMemPoolDestroy", cuMemPoolDestroy(other));
	}
	pthread_join(thread, NULL);
	printf("%d of %d rounds went uncharged\n", wrong, rounds);
	return wrong != 0;
}
