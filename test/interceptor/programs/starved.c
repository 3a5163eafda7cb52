/* SPDX-License-Identifier: Apache-2.0 */
/* The card is full before the quota is: a refusal by the driver leaves no charge. Run in a slice
 * with a quota above the card's free bytes. Exits 0 if so. */
#include "driver.h"

#include "charged.h"

int main(void)
{
	CUmemAllocationProp properties = {
	    .type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUDA_ARRAY_DESCRIPTOR square = {
	    .Width = 14000, .Height = 14000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	CUarray array;
	size_t pitch;

	use_primary();
	/* A leak of 768 MiB shows although the card has less free than the quota. */
	base = left();
	expect("alloc", cuMemAlloc_v2(&p, 768 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refused alloc", 0);
	expect("pitched", cuMemAllocPitch_v2(&p, &pitch, 1 * MIB, 768, 4),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refused pitched alloc", 0);
	expect("create", cuMemCreate(&handle, 768 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refused create", 0);
	expect("array", cuArrayCreate_v2(&array, &square), CUDA_ERROR_OUT_OF_MEMORY);
	charged("after a refused array", 0);
	expect("alloc of what is free", cuMemAlloc_v2(&p, 256 * MIB), CUDA_SUCCESS);
	charged("after an alloc", 256 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	charged("after a free", 0);
	return wrong;
}
