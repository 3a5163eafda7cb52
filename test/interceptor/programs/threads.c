/* SPDX-License-Identifier: Apache-2.0 */
/* threads COUNT CALLS: threads of one process allocate and free memory of several kinds at once.
 * The slice never exceeds its quota, and at the end only the context is charged. Exits 0 if so. */
#include "driver.h"

#include "charged.h"

#include <pthread.h>
#include <stdint.h>

static CUcontext context;
static int calls;

static bool granted(CUresult result)
{
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		expect("a request", result, CUDA_SUCCESS);
	return result == CUDA_SUCCESS;
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
		CUDA_ARRAY_DESCRIPTOR shape = {.Width = (size_t)rand_r(&seed) % 900 + 1,
		                               .Height = (size_t)rand_r(&seed) % 900,
		                               .Format = CU_AD_FORMAT_FLOAT,
		                               .NumChannels = 1};

		switch (rand_r(&seed) % 4) {
		case 0:
			if (granted(
			        cuMemAllocAsync(&p, (size_t)rand_r(&seed) % (8 * MIB) + 1, NULL)))
				OK(cuMemFreeAsync(p, NULL));
			break;
		case 1:
			if (granted(cuMemCreate(&handle, 2 * MIB, &properties, 0)))
				OK(cuMemRelease(handle));
			break;
		case 2:
			if (granted(cuArrayCreate_v2(&array, &shape)))
				OK(cuArrayDestroy(array));
			break;
		default:
			if (linear[slot]) {
				OK(cuMemFree_v2(linear[slot]));
				linear[slot] = 0;
			} else if (!granted(cuMemAlloc_v2(
			               &linear[slot], (size_t)rand_r(&seed) % (12 * MIB) + 1))) {
				linear[slot] = 0;
			}
		}
	}
	for (int slot = 0; slot < 32; slot++) {
		if (linear[slot])
			OK(cuMemFree_v2(linear[slot]));
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 8;
	pthread_t threads[256];
	CUmemoryPool pool;
	size_t before;

	calls = argc > 2 ? atoi(argv[2]) : 1000;
	if (count > 256)
		return 1;
	context = use_primary();
	before = left();
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	cuDeviceGetDefaultMemPool(&pool, 0);
	OK(cuCtxSynchronize());
	OK(cuMemPoolTrimTo(pool, 0));
	/* Driver truth saw half-filled blocks while the threads ran, and corrects that at its
	 * second sample, a second later. */
	if (!left_becomes(before)) {
		printf("%lld bytes are still charged\n", (long long)(before - left()));
		wrong = 1;
	}
	return wrong;
}
