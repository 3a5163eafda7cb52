/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes memory through the CUDA runtime until it is refused; built by nvcc once with the static and
 * once with the shared runtime library. Prints one line: total shown, bytes taken, the last error.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>

int main(void)
{
	size_t available = 0, total = 0, step = 256u << 20, taken = 0;
	struct cudaDeviceProp properties;
	cudaError_t error;
	void *p;

	if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess ||
	    cudaMemGetInfo(&available, &total) != cudaSuccess) {
		printf("no device: %s\n", cudaGetErrorName(cudaGetLastError()));
		return 1;
	}
	while ((error = cudaMalloc(&p, step)) == cudaSuccess && taken < 20ull << 30)
		taken += step;
	printf("total=%zu properties=%zu taken=%zu error=%s\n", total, properties.totalGlobalMem,
	       taken, cudaGetErrorName(error));
	return 0;
}
