/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaver BYTES: allocates BYTES of device 0, forks a child, prints "holds", and waits, as does the
 * child, which survives it. Prints the driver's result if the allocation fails.
 *
 * leaver: prints how many bytes of device 0 are in use, by NVML.
 */
#include "driver.h"

#include "charged.h"

static int say_used(void)
{
	nvmlDevice_t device;
	nvmlMemory_t memory;

	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) ||
	    nvmlDeviceGetMemoryInfo(device, &memory))
		return 1;
	printf("%llu\n", (unsigned long long)memory.used);
	return 0;
}

int main(int count, char **words)
{
	CUdeviceptr pointer;
	CUresult result;

	if (count < 2)
		return say_used();
	use_primary();
	result = cuMemAlloc_v2(&pointer, strtoull(words[1], NULL, 10));
	if (result != CUDA_SUCCESS) {
		printf("%d\n", result);
		return 1;
	}
	if (fork() != 0) {
		puts("holds");
		fflush(stdout);
	}
	for (;;)
		pause();
}
