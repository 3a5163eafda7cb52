/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version of a function that no driver has yet, and functions with names unknown to gpuslice, to
 * test how the interceptor treats them. A real driver would lack them: cuGetProcAddress returns
 * them with FAKECUDA_FUTURE=1 only.
 */
#include "driver.h"

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size);
CUDA_API CUresult cuMemAlloc_v99(CUdeviceptr *out, size_t size, unsigned long long flags);

CUDA_API CUresult cuMemAlloc_v99(CUdeviceptr *out, size_t size, unsigned long long flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : cuMemAlloc_v2(out, size);
}

CUDA_API CUresult cuLogicalMemAlloc(CUdeviceptr *out, size_t size, unsigned long long flags);

CUDA_API CUresult cuLogicalMemAlloc(CUdeviceptr *out, size_t size, unsigned long long flags)
{
	return cuMemAlloc_v99(out, size, flags);
}

CUDA_API CUresult cuLogicalGetLimit(size_t *bytes);

CUDA_API CUresult cuLogicalGetLimit(size_t *bytes)
{
	*bytes = 0;
	return CUDA_SUCCESS;
}
