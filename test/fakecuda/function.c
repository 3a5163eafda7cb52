/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of a function or a kernel. They load nothing. */
#include "kernel.h"
#include "library.h"
#include "module.h"
#include "ptx.h"

static CUresult attribute(int which, uint64_t frame, const struct ptx_kernel *code, int *out)
{
	if (!out || which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	switch (which) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*out = 1024;
		break;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
		*out = (int)frame;
		break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*out = code ? (int)ptx_shared_bytes(code) : 0;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*out = 16;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
		*out = 70;
		break;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*out = 90;
		break;
	default:
		*out = 0;
	}
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success. */
static CUresult enter_function(CUfunction function)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result == CUDA_SUCCESS && !function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	return result;
}

/* Both kinds of handle are accepted. */
CUDA_API CUresult cuFuncGetAttribute(int *out, int which, CUfunction function)
{
	DRIVER_ENTER_BY(enter_function(function));
	if (function->what == LAUNCHABLE_KERNEL)
		return attribute(which, ((CUkernel)function)->frame, ((CUkernel)function)->code,
		                 out);
	return attribute(which, function->frame, function->code, out);
}

/* Code that is not text has no known parameters. */
static CUresult parameter(const struct ptx_kernel *code, size_t index, size_t *offset, size_t *size)
{
	size_t bytes;

	if (!offset || !code || !ptx_parameter(code, index, offset, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (size)
		*size = bytes;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset,
                                     size_t *size)
{
	DRIVER_ENTER_BY(enter_function(function));
	return parameter(function->what == LAUNCHABLE_KERNEL ? ((CUkernel)function)->code
	                                                     : function->code,
	                 index, offset, size);
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction function, int which, int value)
{
	(void)which;
	(void)value;
	DRIVER_ENTER_BY(enter_function(function));
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncLoad(CUfunction function)
{
	DRIVER_ENTER_BY(enter_function(function));
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success. */
static CUresult enter_kernel(CUkernel kernel, const void *out)
{
	CUresult result = driver_enter();

	if (result == CUDA_SUCCESS && !kernel)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (result == CUDA_SUCCESS && !out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return result;
}

CUDA_API CUresult cuKernelGetAttribute(int *out, int which, CUkernel kernel, CUdevice device)
{
	DRIVER_ENTER_BY(enter_kernel(kernel, out));
	if (!device_at(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return attribute(which, kernel->frame, kernel->code, out);
}

CUDA_API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return library_function(context, kernel, out);
}
