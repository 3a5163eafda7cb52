/* SPDX-License-Identifier: Apache-2.0 */
/* Launches. */
#include "kernel.h"

#include "capture.h"
#include "library.h"
#include "limit.h"
#include "module.h"
#include "ptx.h"
#include "stream.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

/* In a block, and in a grid. */
#define MOST_THREADS 1024
#define MOST_THREADS_Z 64
#define MOST_BLOCKS_X 0x7fffffff
#define MOST_BLOCKS_YZ 65535
#define MOST_SHARED_BYTES (227 * 1024)

/* The arguments of a launch. */
struct arguments {
	void **parameters, **extra;
};

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

/* The buffer in `extra` with all arguments, and its size. */
static const void *buffer_of(void **extra, size_t *size)
{
	const void *buffer = NULL;

	*size = 0;
	for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			*size = *(const size_t *)extra[1];
		else
			return NULL;
	}
	return buffer;
}

/* The parameters' values, as the kernel reads them. */
static CUresult gather(const struct ptx_kernel *code, const struct arguments *arguments, char *to)
{
	size_t bytes = ptx_parameter_bytes(code), offset, size;

	if (arguments->parameters && arguments->extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (arguments->extra) {
		const void *buffer = buffer_of(arguments->extra, &size);

		if (!buffer)
			return CUDA_ERROR_INVALID_VALUE;
		/* A buffer that is too short is accepted (driver observation). */
		memset(to, 0, bytes);
		memcpy(to, buffer, size < bytes ? size : bytes);
		return CUDA_SUCCESS;
	}
	for (size_t i = 0; ptx_parameter(code, i, &offset, &size); i++) {
		if (!arguments->parameters || !arguments->parameters[i])
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(to + offset, arguments->parameters[i], size);
	}
	return CUDA_SUCCESS;
}

/* Runs its text, if that has a visible effect. */
static CUresult carry_out(CUcontext context, const struct CUfunc_st *function,
                          const CUlaunchConfig *config, CUstream stream,
                          const struct arguments *arguments)
{
	const struct ptx_kernel *code = function->code;
	CUdeviceptr arrays = 0;
	struct ptx_run *run;
	char *parameters;
	CUresult result;

	if (!code || !arguments)
		return CUDA_SUCCESS;
	parameters = malloc(ptx_parameter_bytes(code) + 1);
	if (!parameters)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = gather(code, arguments, parameters);
	if (result != CUDA_SUCCESS || !ptx_does_something(code))
		goto out;
	result = CUDA_ERROR_OUT_OF_MEMORY;
	if (ptx_uses_arrays(code) && !(arrays = module_arrays(function->module)))
		goto out;
	run = ptx_start(code, context, config, parameters, arrays);
	if (!run)
		goto out;
	work_give(context, stream, run, function->module->image);
	result = CUDA_SUCCESS;
out:
	free(parameters);
	return result;
}

static CUresult run_now(CUcontext context, const struct CUfunc_st *function,
                        const CUlaunchConfig *config, CUstream stream,
                        const struct arguments *arguments)
{
	CUresult result = limit_fit_stack(kernel_context(function), function->frame);

	if (result == CUDA_SUCCESS)
		result = kernel_run(context, function);
	return result == CUDA_SUCCESS ? carry_out(context, function, config, stream, arguments)
	                              : result;
}

static bool is_possible(const CUlaunchConfig *config)
{
	uint64_t in_layer = (uint64_t)config->blockDimX * config->blockDimY;

	return config->gridDimX && config->gridDimY && config->gridDimZ && in_layer &&
	       config->blockDimZ && in_layer <= MOST_THREADS &&
	       config->blockDimZ <= MOST_THREADS_Z &&
	       in_layer * config->blockDimZ <= MOST_THREADS && config->gridDimX <= MOST_BLOCKS_X &&
	       config->gridDimY <= MOST_BLOCKS_YZ && config->gridDimZ <= MOST_BLOCKS_YZ &&
	       config->sharedMemBytes <= MOST_SHARED_BYTES;
}

/* A kernel is launched in its stream's context, not in the current one. */
static CUcontext context_of(CUstream stream, CUcontext current)
{
	return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? current
	                                                                    : stream->owned.context;
}

/* Without arguments the kernel's are unknown, and it does nothing. */
static CUresult launch(const CUlaunchConfig *config, CUfunction handle, CUstream stream,
                       const struct arguments *arguments)
{
	struct capture *capture;
	CUfunction function;
	CUgraphNode node;
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (!handle)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_possible(config))
		return CUDA_ERROR_INVALID_VALUE;
	context = context_of(stream, context);
	TRY(kernel_function(context, handle, &function));
	capture = capture_of(stream);
	if (!capture)
		return run_now(context, function, config, stream, arguments);
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
	return result;
}

#define DIMENSIONS                                                                                 \
	unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
	    unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define CONFIG                                                                                     \
	&(CUlaunchConfig)                                                                          \
	{                                                                                          \
		grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, NULL, NULL, 0     \
	}
#define ARGUMENTS(parameters, extra) (&(struct arguments){parameters, extra})

CUDA_API CUresult cuLaunchKernel(CUfunction function, DIMENSIONS, CUstream stream,
                                 void **parameters, void **extra)
{
	return launch(CONFIG, function, stream_legacy(stream), ARGUMENTS(parameters, extra));
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, DIMENSIONS, CUstream stream,
                                      void **parameters, void **extra)
{
	return launch(CONFIG, function, stream_per_thread(stream), ARGUMENTS(parameters, extra));
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, DIMENSIONS, CUstream stream,
                                            void **parameters)
{
	return launch(CONFIG, function, stream_legacy(stream), ARGUMENTS(parameters, NULL));
}

CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, DIMENSIONS, CUstream stream,
                                                 void **parameters)
{
	return launch(CONFIG, function, stream_per_thread(stream), ARGUMENTS(parameters, NULL));
}

/* Each in a stream of its own; the stream's context determines the device. */
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

		result = one->hStream ? launch(&config, one->function, one->hStream,
		                               ARGUMENTS(one->kernelParams, NULL))
		                      : CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                   void **parameters, void **extra)
{
	return config ? launch(config, function, stream_legacy(config->hStream),
	                       ARGUMENTS(parameters, extra))
	              : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                        void **parameters, void **extra)
{
	return config ? launch(config, function, stream_per_thread(config->hStream),
	                       ARGUMENTS(parameters, extra))
	              : CUDA_ERROR_INVALID_VALUE;
}

/* The forms of CUDA 2, with a block size that is set before: one thread here. */
CUDA_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	CUlaunchConfig config = {
	    (unsigned int)width, (unsigned int)height, 1, 1, 1, 1, 0, NULL, NULL, 0};

	if (width <= 0 || height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(&config, function, stream_legacy(stream), NULL);
}

CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return cuLaunchGridAsync(function, width, height, NULL);
}

CUDA_API CUresult cuLaunch(CUfunction function)
{
	return cuLaunchGridAsync(function, 1, 1, NULL);
}
