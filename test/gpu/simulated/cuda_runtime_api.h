/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the CUDA runtime as fill_runtime.c and runtime.c use, by the driver's functions. */
#ifndef SIMULATED_CUDA_RUNTIME_API_H
#define SIMULATED_CUDA_RUNTIME_API_H

#include "cuda.h"

typedef int cudaError_t;

enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };

struct cudaDeviceProp {
	size_t totalGlobalMem;
};

static inline cudaError_t simulated_begin(void)
{
	static CUcontext context;
	cudaError_t error = cudaSuccess;

	if (!context && !(error = cuInit(0)) && !(error = cuDevicePrimaryCtxRetain(&context, 0)))
		error = cuCtxSetCurrent(context);
	return error;
}

static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
	cudaError_t error = simulated_begin();

	return error ? error : cuDeviceTotalMem(&properties->totalGlobalMem, device);
}

static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	cudaError_t error = simulated_begin();

	return error ? error : cuMemGetInfo(available, total);
}

static inline cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
	CUdeviceptr at = 0;
	cudaError_t error = simulated_begin();

	if (!error)
		error = cuMemAlloc(&at, bytes);
	*pointer = (void *)at;
	return error;
}

static inline cudaError_t cudaFree(void *pointer)
{
	return cuMemFree((CUdeviceptr)pointer);
}

static inline cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

static inline const char *cudaGetErrorName(cudaError_t error)
{
	return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
	       : error                            ? "another error"
	                                          : "cudaSuccess";
}

#endif
