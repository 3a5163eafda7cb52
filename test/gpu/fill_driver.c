/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes memory through the driver that it is linked with, by cuMemAlloc or, given the argument
 * "vmm", by cuMemCreate, until it is refused. Prints one line like fill_runtime.c.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

static CUresult take(int vmm, size_t bytes)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pointer;

	return vmm ? cuMemCreate(&handle, bytes, &properties, 0) : cuMemAlloc(&pointer, bytes);
}

int main(int argc, char **argv)
{
	int vmm = argc > 1 && strcmp(argv[1], "vmm") == 0;
	size_t available = 0, total = 0, device_total = 0, step = 256u << 20, taken = 0;
	const char *name = "?";
	CUcontext context;
	CUresult error;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuMemGetInfo(&available, &total) || cuDeviceTotalMem(&device_total, 0)) {
		printf("no device\n");
		return 1;
	}
	while ((error = take(vmm, step)) == CUDA_SUCCESS && taken < 20ull << 30)
		taken += step;
	cuGetErrorName(error, &name);
	printf("total=%zu properties=%zu taken=%zu error=%s\n", total, device_total, taken, name);
	return 0;
}
