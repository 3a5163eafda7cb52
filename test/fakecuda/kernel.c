/* SPDX-License-Identifier: Apache-2.0 */
/* Launches. */
#include "kernel.h"

#include "capture.h"
#include "library.h"
#include "limit.h"
#include "module.h"
#include "stream.h"

CUresult kernel_function(CUcontext context, CUfunction handle, CUfunction *out)
{
	if (handle->what == LAUNCHABLE_KERNEL)
		return library_function(context, (CUkernel)handle, out);
	*out = handle;
	return CUDA_SUCCESS;
}

CUcontext kernel_context(const struct CUfunc_st *function)
{
	return function->module->owned.context;
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

static CUresult run_now(CUcontext context, const struct CUfunc_st *function)
{
	CUresult result = limit_fit_stack(kernel_context(function), function->frame);

	return result == CUDA_SUCCESS ? kernel_run(context, function) : result;
}

/* A kernel is launched in its stream's context, whichever is current. */
static CUcontext context_of(CUstream stream, CUcontext current)
{
	return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? current
	                                                                    : stream->owned.context;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction handle, CUstream stream)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);
	struct capture *capture;
	CUfunction function;
	CUgraphNode node;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!config->gridDimX || !config->gridDimY || !config->gridDimZ || !config->blockDimX ||
	    !config->blockDimY || !config->blockDimZ)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	context = context_of(stream, context);
	result = kernel_function(context, handle, &function);
	if (result != CUDA_SUCCESS)
		return driver_leave(result);
	capture = capture_of(stream);
	if (!capture)
		return driver_leave(run_now(context, function));
	result = capture_add(capture, CU_GRAPH_NODE_TYPE_KERNEL, &node);
	if (result == CUDA_SUCCESS) {
		node->function = function;
		node->kernel = (CUDA_KERNEL_NODE_PARAMS){.func = function,
		                                         .ctx = kernel_context(function),
		                                         .gridDimX = config->gridDimX,
		                                         .gridDimY = config->gridDimY,
		                                         .gridDimZ = config->gridDimZ,
		                                         .blockDimX = config->blockDimX,
		                                         .blockDimY = config->blockDimY,
		                                         .blockDimZ = config->blockDimZ,
		                                         .sharedMemBytes = config->sharedMemBytes};
	}
	return driver_leave(result);
}

#define DIMENSIONS                                                                                 \
	unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
	    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define CONFIG                                                                                     \
	&(CUlaunchConfig)                                                                          \
	{                                                                                          \
		grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, NULL, NULL, 0     \
	}

CUDA_API CUresult cuLaunchKernel(CUfunction function, DIMENSIONS, CUstream stream,
                                 void **parameters, void **extra)
{
	(void)parameters;
	(void)extra;
	return launch(CONFIG, function, stream_legacy(stream));
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, DIMENSIONS, CUstream stream,
                                      void **parameters, void **extra)
{
	(void)parameters;
	(void)extra;
	return launch(CONFIG, function, stream_per_thread(stream));
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, DIMENSIONS, CUstream stream,
                                            void **parameters)
{
	(void)parameters;
	return launch(CONFIG, function, stream_legacy(stream));
}

CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, DIMENSIONS, CUstream stream,
                                                 void **parameters)
{
	(void)parameters;
	return launch(CONFIG, function, stream_per_thread(stream));
}

/* Each in a stream of its own, whose context says the device. */
CUDA_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                                       unsigned int flags)
{
	CUresult result = list && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	(void)flags;
	for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
		const CUDA_LAUNCH_PARAMS *one = &list[i];
		CUlaunchConfig config = {one->gridDimX,
		                         one->gridDimY,
		                         one->gridDimZ,
		                         one->blockDimX,
		                         one->blockDimY,
		                         one->blockDimZ,
		                         one->sharedMemBytes,
		                         NULL,
		                         NULL,
		                         0};

		result = one->hStream ? launch(&config, one->function, one->hStream)
		                      : CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                   void **parameters, void **extra)
{
	(void)parameters;
	(void)extra;
	return config ? launch(config, function, stream_legacy(config->hStream))
	              : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                        void **parameters, void **extra)
{
	(void)parameters;
	(void)extra;
	return config ? launch(config, function, stream_per_thread(config->hStream))
	              : CUDA_ERROR_INVALID_VALUE;
}

/* The forms of CUDA 2, whose blocks have a size that is set beforehand: here it is one thread. */
CUDA_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	CUlaunchConfig config = {
	    (unsigned int)width, (unsigned int)height, 1, 1, 1, 1, 0, NULL, NULL, 0};

	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(&config, function, stream_legacy(stream));
}

CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return cuLaunchGridAsync(function, width, height, NULL);
}

CUDA_API CUresult cuLaunch(CUfunction function)
{
	return cuLaunchGridAsync(function, 1, 1, NULL);
}
