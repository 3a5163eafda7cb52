/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

static unsigned long long driver_used(void)
{
	size_t available, total;

	MUST(cuMemGetInfo_v2(&available, &total));
	return total - available;
}

int main(void)
{
	char name[96];
	size_t total, info_free, info_total;
	unsigned int old_total = 0;
	int version;
	nvmlMemory_t first;
	nvmlMemory_v2_t second = {.version = NVML_MEMORY_V2};
	unsigned long long driver_before, nvml_before;
	CUdeviceptr pointer;

	start_with_context();
	MUST(cuDriverGetVersion(&version));
	MUST(cuDeviceGetName(name, sizeof(name), 0));
	MUST(cuDeviceTotalMem_v2(&total, 0));
	MUST(cuMemGetInfo_v2(&info_free, &info_total));
	if (nvmlDeviceGetMemoryInfo(nvml_device, &first) != NVML_SUCCESS ||
	    nvmlDeviceGetMemoryInfo_v2(nvml_device, &second) != NVML_SUCCESS)
		stop("NVML does not tell about memory");
	printf("driver.version: %d\n", version);
	printf("device.name: %s\n", name);
	printf("total.cuDeviceTotalMem_v2: %zu\n", total);
	say_result("total.cuDeviceTotalMem_v1", cuDeviceTotalMem(&old_total, 0));
	printf("total.cuDeviceTotalMem_v1.value: %u\n", old_total);
	printf("total.cuMemGetInfo: %zu\n", info_total);
	printf("total.nvml: %llu\n", first.total);
	printf("total.nvml_v2: %llu\n", second.total);
	printf("reserved.nvml_v2: %llu\n", second.reserved);
	printf("used.nvml_v1_minus_v2: %lld\n", (long long)(first.used - second.used));
	printf("used.driver_minus_nvml_v2: %lld\n",
	       (long long)(info_total - info_free) - (long long)second.used);

	driver_before = driver_used();
	nvml_before = (unsigned long long)held();
	MUST(cuMemAlloc_v2(&pointer, 1 * GiB));
	printf("delta.1GiB: driver %llu, nvml %llu\n", driver_used() - driver_before,
	       (unsigned long long)held() - nvml_before);
	MUST(cuMemFree_v2(pointer));
	return 0;
}
