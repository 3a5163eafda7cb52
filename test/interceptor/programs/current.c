/* SPDX-License-Identifier: Apache-2.0 */
/*
 * current ROUNDS POOLS: one thread changes the device's current pool while a second allocates from
 * the current pool, with POOLS other pools. A later allocation is charged to the pool that it makes
 * grow. Exits 0 if so.
 */
#include "driver.h"

#include "charged.h"

#include <limits.h>
#include <pthread.h>
#include <stdint.h>

static pthread_barrier_t barrier;
static CUcontext context;
static CUmemoryPool usual, other;
static int rounds;

static void keep_all(CUmemoryPool pool)
{
	uint64_t all = UINT64_MAX;

	MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void use(void)
{
	CUdeviceptr pointer;

	MUST(cuMemAllocAsync(&pointer, MIB, NULL));
	MUST(cuMemFreeAsync(pointer, NULL));
}

static void *allocate(void *argument)
{
	MUST(cuCtxSetCurrent(context));
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
	int pools = argc > 2 ? atoi(argv[2]) : 0, uncharged = 0;

	rounds = argc > 1 ? atoi(argv[1]) : 1;
	context = use_primary();
	MUST(cuDeviceGetDefaultMemPool(&usual, 0));
	keep_all(usual);
	use();
	MUST(cuCtxSynchronize());
	/* With more pools the interceptor searches longer for the right one. */
	for (int i = 0; i < pools; i++)
		MUST(cuMemPoolCreate(&other, &properties));
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&thread, NULL, allocate, NULL);
	for (int i = 0; i < rounds; i++) {
		size_t before;

		MUST(cuMemPoolCreate(&other, &properties));
		keep_all(other);
		MUST(cuDeviceSetMemPool(0, usual));
		before = left();
		pthread_barrier_wait(&barrier);
		for (volatile int wait = i % 64 * 32; wait > 0; wait--)
			;
		MUST(cuDeviceSetMemPool(0, other));
		pthread_barrier_wait(&barrier);
		use();
		if (left() >= before) {
			printf("round %d: the other pool grew, and nothing was charged\n", i);
			uncharged++;
		}
		MUST(cuDeviceSetMemPool(0, usual));
		MUST(cuCtxSynchronize());
		MUST(cuMemPoolDestroy(other));
	}
	pthread_join(thread, NULL);
	printf("%d of %d rounds went uncharged\n", uncharged, rounds);
	return uncharged != 0;
}
