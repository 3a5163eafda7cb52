/* SPDX-License-Identifier: Apache-2.0 */
/* Driver truth: what NVML says that this process holds, against what it did. */
#include "conformance.h"

#include <unistd.h>

#define MANY 1024

/* -1: this process is not in the list. */
static long long own_bytes(void)
{
	static nvmlProcessInfo_v2_t list[MANY];
	unsigned int count = MANY;

	if (nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, &count, list) != NVML_SUCCESS)
		return -1;
	for (unsigned int i = 0; i < count; i++)
		if (list[i].pid == (unsigned int)getpid())
			return (long long)list[i].usedGpuMemory;
	return -1;
}

int main(void)
{
	CUcontext context;
	CUdeviceptr small, large, pooled, managed;
	unsigned int count;
	long long start_bytes, base;

	start();
	printf("own.after_init: %lld\n", own_bytes());
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	start_bytes = base = own_bytes();
	printf("own.with_context: %lld\n", base);

	count = 0;
	printf("list.no_room: %d",
	       nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, &count, NULL));
	printf(", count %u\n", count);
	count = MANY;
	printf("list.null_with_room: %d\n",
	       nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, &count, NULL));

	MUST(cuMemAlloc_v2(&small, 4096));
	printf("own.plus_4KiB: %lld\n", own_bytes() - base);
	base = own_bytes();
	MUST(cuMemAlloc_v2(&large, 1 * GiB + 1));
	printf("own.plus_1GiB+1: %lld\n", own_bytes() - base);
	base = own_bytes();
	MUST(cuMemAllocAsync(&pooled, 1 * MiB, NULL));
	printf("own.plus_pool: %lld\n", own_bytes() - base);
	MUST(cuMemFreeAsync(pooled, NULL));
	MUST(cuCtxSynchronize());
	MUST(cuMemFree_v2(large));
	MUST(cuMemFree_v2(small));
	printf("own.all_freed: %lld\n", own_bytes() - start_bytes);
	MUST(cuDevicePrimaryCtxRelease_v2(0));
	printf("own.context_released: %lld\n", own_bytes());

	/* For whom managed memory counts, and what outlives its context. */
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	start_bytes = own_bytes();
	MUST(cuMemAllocManaged(&managed, 64 * MiB, 1));
	MUST(cuMemsetD8_v2(managed, 0, 64 * MiB));
	MUST(cuCtxSynchronize());
	printf("own.plus_managed: %lld\n", own_bytes() - start_bytes);
	MUST(cuMemFree_v2(managed));
	MUST(cuMemAllocAsync(&pooled, 1 * MiB, NULL));
	MUST(cuDevicePrimaryCtxReset_v2(0));
	printf("own.pool_after_reset: %lld\n", own_bytes());
	return 0;
}
