/* SPDX-License-Identifier: Apache-2.0 */
/* In a slice that it cannot attach to, a process gets no memory from any function, also at a second
 * attempt, and still sees its total. Exits 0 if so. */
#include "driver.h"

#include <stdio.h>

int main(void)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUcontext context;
	CUdeviceptr pointer;
	size_t total = 0;
	int wrong = 0;

	if (cuInit(0) || cuDeviceTotalMem_v2(&total, 0) || !total) {
		printf("the device cannot be looked at\n");
		return 1;
	}
	for (int again = 0; again < 2; again++) {
		wrong |= cuDevicePrimaryCtxRetain(&context, 0) != CUDA_ERROR_OUT_OF_MEMORY;
		wrong |= cuCtxCreate_v2(&context, 0, 0) != CUDA_ERROR_OUT_OF_MEMORY;
		wrong |= cuMemCreate(&handle, 2 << 20, &properties, 0) != CUDA_ERROR_OUT_OF_MEMORY;
		wrong |= cuMemAlloc_v2(&pointer, 1) == CUDA_SUCCESS;
	}
	if (wrong)
		printf("something was granted\n");
	return wrong;
}
