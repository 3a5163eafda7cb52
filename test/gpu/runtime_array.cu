// SPDX-License-Identifier: Apache-2.0
#include "runtime.h"

__device__ char big[ARRAY_BYTES];

__global__ void touch(size_t at)
{
	big[at] = 1;
}

cudaError_t use_array(void)
{
	touch<<<1, 1>>>(ARRAY_BYTES - 1);
	cudaError_t result = cudaGetLastError(), later = cudaDeviceSynchronize();

	return result == cudaSuccess ? later : result;
}
