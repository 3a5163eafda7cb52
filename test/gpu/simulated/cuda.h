/* SPDX-License-Identifier: Apache-2.0 */
/* For fill_driver.c and the runtime's stand-in, where there is no CUDA toolkit: the project's
 * declarations, by the toolkit's names. */
#ifndef SIMULATED_CUDA_H
#define SIMULATED_CUDA_H

#include "cuda_abi.h"

#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemGetInfo cuMemGetInfo_v2

CUresult cuInit(unsigned int flags);
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags);
CUresult cuMemFree(CUdeviceptr pointer);
CUresult cuMemGetInfo(size_t *available, size_t *total);

#endif
