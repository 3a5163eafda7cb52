/* SPDX-License-Identifier: Apache-2.0 */
/* threads COUNT CALLS: threads of one process allocate and free memory of several kinds at once.
 * The slice never exceeds its quota, and at the end only the context is charged. Exits 0 if so. */
#include "driver.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MIB (1ull << 20)

static CUcontext context;
static int calls;
static int wrong;

static void expect(CUresult result)
{
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		printf("CUDA error %d\n", result);
		__atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
	}
}

static void *work(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUdeviceptr linear[32] = {0};

	cuCtxSetCurrent(context);
	for (int i = 0; i < calls; i++) {
		int slot = rand_r(&seed) % 32;
		CUmemGenericAllocationHandle handle;
		CUdeviceptr p;
		CUarray array;
		CUresult result;
		CUDA_ARRAY_DESCRIPTOR shape = {.Width = (size_t)rand_r(&seed) % 900 + 1,
		                               .Height = (size_t)rand_r(&seed) % 900,
		                               .Format = CU_AD_FORMAT_FLOAT,
		                               .NumChannels = 1};

		switch (rand_r(&seed) % 4) {
		case 0:
			result = cuMemAllocAsync(&p, (size_t)rand_r(&seed) % (8 * MIB) + 1, NULL);
			expect(result);
			if (result == CUDA_SUCCESS)
				expect(cuMemFreeAsync(p, NULL));
			break;
		case 1:
			result = cuMemCreate(&handle, 2 * MIB, &properties, 0);
			expect(result);
			if (result == CUDA_SUCCESS)
				expect(cuMemRelease(handle));
			break;
		case 2:
			result = cuArrayCreate_v2(&array, &shape);
			expect(result);
			if (result == CUDA_SUCCESS)
				expect(cuArrayDestroy(array));
			break;
		default:
			if (linear[slot]) {
				expect(cuMemFree_v2(linear[slot]));
				linear[slot] = 0;
			} else {
				result = cuMemAlloc_v2(&linear[slot],
				                       (size_t)rand_r(&seed) % (12 * MIB) + 1);
				expect(result);
				if (result)
					linear[slot] = 0;
			}
		}
	}
	for (int slot = 0; slot < 32; slot++) {
		if (linear[slot])
			expect(cuMemFree_v2(linear[slot]));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 8;
	pthread_t threads[256];
	CUmemoryPool pool;
	size_t before, after, total;

	calls = argc > 2 ? atoi(argv[2]) : 1000;
	if (count > 256 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuCtxSetCurrent(context) || cuMemGetInfo_v2(&before, &total))
		return 1;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	cuDeviceGetDefaultMemPool(&pool, 0);
	expect(cuCtxSynchronize());
	expect(cuMemPoolTrimTo(pool, 0));
	/* Driver truth saw half-filled blocks while the threads ran, and corrects that at its
	 * second sample, a second later. */
	for (int tries = 0; tries < 1000; tries++) {
		cuMemGetInfo_v2(&after, &total);
		if (after == before)
			break;
		usleep(10000);
	}
	if (after != before) {
		printf("%lld bytes are still charged\n", (long long)(before - after));
		wrong = 1;
	}
	return wrong;
}
