/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version of a function that no driver has yet, for what the interceptor does when one comes. A
 * real driver would not have it: cuGetProcAddress hands it out with FAKECUDA_FUTURE=1 alone.
 */
#include "driver.h"

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size);
CUDA_API CUresult cuMemAlloc_v99(CUdeviceptr *out, size_t size, unsigned long long flags);

CUDA_API CUresult cuMemAlloc_v99(CUdeviceptr *out, size_t size, unsigned long long flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : cuMemAlloc_v2(out, size);
}
