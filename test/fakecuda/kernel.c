/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, their functions, and launches. */
#include "kernel.h"

#include "capture.h"
#include "limit.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

struct CUmod_st {
	struct owned owned;
};

static void free_module(struct owned *owned)
{
	free(owned);
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	CUmodule module;

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !image)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	module = calloc(1, sizeof(*module));
	if (!module)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	context_own(context, &module->owned, free_module);
	*out = module;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!module)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	context_disown(&module->owned);
	free(module);
	return driver_leave(CUDA_SUCCESS);
}

/* Any name is one of a kernel, and one kernel stands for all that want the same. */
CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	static struct CUfunc_st functions[2][2] = {
	    {{false, false}, {false, true}},
	    {{true, false}, {true, true}},
	};
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!module)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || !name)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = &functions[strstr(name, "malloc") != NULL][strstr(name, "printf") != NULL];
	return driver_leave(CUDA_SUCCESS);
}

CUresult kernel_run(CUcontext context, const struct CUfunc_st *function)
{
	CUresult result = CUDA_SUCCESS;

	if (function->uses_malloc)
		result = limit_take_heap(context);
	if (result == CUDA_SUCCESS && function->uses_printf)
		limit_take_fifo(context);
	return result;
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                 unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                 unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                 void **parameters, void **extra)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	struct capture *capture;
	CUgraphNode node;

	(void)shared_bytes;
	(void)parameters;
	(void)extra;
	if (result != CUDA_SUCCESS)
		return result;
	if (!function)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	capture = capture_of(stream_legacy(stream));
	if (!capture)
		return driver_leave(kernel_run(context, function));
	result = capture_add(capture, CU_GRAPH_NODE_TYPE_KERNEL, &node);
	if (result == CUDA_SUCCESS)
		node->function = function;
	return driver_leave(result);
}
