// SPDX-License-Identifier: Apache-2.0
//
// What the tools of tools.py look at: `tools good` adds two vectors and says whether the sum is right; `tools planted`
// writes one element past the end of one; `tools fill` takes memory until it is refused, and says how much it was.
//
//   nvcc -arch=native -g -G -o tools test/gpu/tools.cu
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

static const int COUNT = 1000;

__global__ void add(const float *a, const float *b, float *sum, int count)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		sum[i] = a[i] + b[i];
}

static int run(int count)
{
	static float host[COUNT];
	float *a, *b, *sum;

	for (int i = 0; i < COUNT; i++)
		host[i] = (float)i;
	if (cudaMalloc(&a, (COUNT + 1) * sizeof(float)) || cudaMalloc(&b, (COUNT + 1) * sizeof(float)) ||
	    cudaMalloc(&sum, COUNT * sizeof(float)) ||
	    cudaMemcpy(a, host, sizeof(host), cudaMemcpyHostToDevice) ||
	    cudaMemcpy(b, host, sizeof(host), cudaMemcpyHostToDevice) || cudaMemset(a + COUNT, 0, sizeof(float)) ||
	    cudaMemset(b + COUNT, 0, sizeof(float)))
		return 1;
	add<<<(count + 255) / 256, 256>>>(a, b, sum, count);
	if (cudaDeviceSynchronize() || cudaMemcpy(host, sum, sizeof(host), cudaMemcpyDeviceToHost))
		return 1;
	for (int i = 0; i < COUNT; i++) {
		if (host[i] != 2 * (float)i)
			return 1;
	}
	printf("the sum is right\n");
	return 0;
}

static int fill()
{
	size_t step = (size_t)64 << 20, taken = 0, limit = (size_t)20 << 30;
	cudaError_t error = cudaSuccess;
	void *pointer;

	while (taken < limit && (error = cudaMalloc(&pointer, step)) == cudaSuccess)
		taken += step;
	printf("taken=%zu error=%s\n", taken, cudaGetErrorName(error));
	return 0;
}

int main(int count, char **argument)
{
	if (count != 2)
		return 64;
	if (strcmp(argument[1], "fill") == 0)
		return fill();
	return run(strcmp(argument[1], "planted") == 0 ? COUNT + 1 : COUNT);
}
