/* SPDX-License-Identifier: Apache-2.0 */
/* Driver truth: NVML's bytes for this process, after each of its calls; and NVML's protocols. */
#include "conformance.h"

#include <unistd.h>

#define MANY 1024

/* -1: this process is not listed. */
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

#define SAY_LIST(name, type)                                                                       \
	do {                                                                                       \
		static type list[MANY];                                                            \
		unsigned int count = 0;                                                            \
		nvmlReturn_t none = name(nvml_device, &count, NULL), all;                          \
                                                                                                   \
		printf("%s: no room %d, count %u", #name + strlen("nvmlDeviceGet"), none, count);  \
		count = MANY;                                                                      \
		all = name(nvml_device, &count, list);                                             \
		printf("; room %d, count %u, own %d\n", all, count,                                \
		       count == 1 && list[0].pid == (unsigned int)getpid());                       \
	} while (0)

/* The protocol of the lists, while this process is the only one. */
static void lists(void)
{
	static nvmlProcessDetail_v1_t entries[MANY];
	static const unsigned int versions[] = {0, 1, NVML_PROCESS_DETAIL_LIST_V1 + 1};

	SAY_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
	SAY_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
	SAY_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t);
	SAY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t);
	SAY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t);
	SAY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t);
	SAY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t);
	SAY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t);
	SAY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t);
	for (unsigned int mode = 0; mode <= NVML_PROCESS_MODE_ALL + 1; mode++) {
		nvmlProcessDetailList_v1_t list = {.version = NVML_PROCESS_DETAIL_LIST_V1,
		                                   .mode = mode};
		nvmlReturn_t none = nvmlDeviceGetRunningProcessDetailList(nvml_device, &list);

		printf("detail.mode_%u: no room %d, count %u", mode, none,
		       list.numProcArrayEntries);
		list.numProcArrayEntries = MANY;
		list.procArray = entries;
		printf("; room %d", nvmlDeviceGetRunningProcessDetailList(nvml_device, &list));
		printf(", count %u\n", list.numProcArrayEntries);
	}
	for (size_t i = 0; i < COUNT(versions); i++) {
		nvmlProcessDetailList_v1_t list = {.version = versions[i]};

		printf("detail.version_%x: %d\n", versions[i],
		       nvmlDeviceGetRunningProcessDetailList(nvml_device, &list));
	}
	printf("detail.null: %d\n", nvmlDeviceGetRunningProcessDetailList(nvml_device, NULL));
}

static void memory_versions(void)
{
	static const unsigned int versions[] = {
	    0, 1, 2, NVML_MEMORY_V2, NVML_MEMORY_V2 + 1, NVML_STRUCT_VERSION(nvmlMemory_v2_t, 3)};

	for (size_t i = 0; i < COUNT(versions); i++) {
		nvmlMemory_v2_t memory = {.version = versions[i]};
		nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(nvml_device, &memory);

		printf("memory.version_%x: %d, adds up %d\n", versions[i], result,
		       memory.total && memory.total == memory.reserved + memory.used + memory.free);
	}
	printf("memory.null: %d, v2 %d\n", nvmlDeviceGetMemoryInfo(nvml_device, NULL),
	       nvmlDeviceGetMemoryInfo_v2(nvml_device, NULL));
}

/* Utilization is not reproducible; its protocol is. */
static void utilization(void)
{
	nvmlProcessesUtilizationInfo_v1_t info = {.version = NVML_PROCESSES_UTILIZATION_INFO_V1};
	unsigned int count = 0;

	printf("utilization.null: %d",
	       nvmlDeviceGetProcessUtilization(nvml_device, NULL, &count, 0));
	printf(", some %d\n", count > 0);
	printf("utilization.null_count: %d\n",
	       nvmlDeviceGetProcessUtilization(nvml_device, NULL, NULL, 0));
	printf("utilization_info.null: %d\n",
	       nvmlDeviceGetProcessesUtilizationInfo(nvml_device, NULL));
	info.version = 0;
	printf("utilization_info.version_0: %d\n",
	       nvmlDeviceGetProcessesUtilizationInfo(nvml_device, &info));
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

	lists();
	memory_versions();
	utilization();

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

	/* Which process managed memory is listed for, and what outlives its context. */
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
