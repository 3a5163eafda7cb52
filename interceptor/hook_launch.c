/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches of kernels. Nearly all of them pass after one comparison; see function.h for those that
 * may take memory.
 */
#include "function.h"
#include "stream.h"
#include "table.h"

/* `call` is made in between, with its result in `result`. */
#define CAREFULLY(function, stream, per_thread, call)                                              \
	do {                                                                                       \
		struct launch careful;                                                             \
                                                                                                   \
		if (__builtin_expect(function_is_plain(function), 1))                              \
			return call;                                                               \
		if (!launch_begin(&careful, function, stream_records(stream, per_thread)))         \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		return launch_end(&careful, call);                                                 \
	} while (0)

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **parameters, void **extra)
{
	CAREFULLY(function, stream, false,
	          DRIVER(cuLaunchKernel)(function, grid_x, grid_y, grid_z, block_x, block_y,
	                                 block_z, shared_bytes, stream, parameters, extra));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                             void **parameters, void **extra)
{
	CAREFULLY(function, stream, true,
	          DRIVER(cuLaunchKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x, block_y,
	                                      block_z, shared_bytes, stream, parameters, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra)
{
	CAREFULLY(function, config ? config->hStream : NULL, false,
	          DRIVER(cuLaunchKernelEx)(config, function, parameters, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                               void **extra)
{
	CAREFULLY(function, config ? config->hStream : NULL, true,
	          DRIVER(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void **parameters)
{
	CAREFULLY(function, stream, false,
	          DRIVER(cuLaunchCooperativeKernel)(function, grid_x, grid_y, grid_z, block_x,
	                                            block_y, block_z, shared_bytes, stream,
	                                            parameters));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x,
                                        unsigned int grid_y, unsigned int grid_z,
                                        unsigned int block_x, unsigned int block_y,
                                        unsigned int block_z, unsigned int shared_bytes,
                                        CUstream stream, void **parameters)
{
	CAREFULLY(function, stream, true,
	          DRIVER(cuLaunchCooperativeKernel_ptsz)(function, grid_x, grid_y, grid_z, block_x,
	                                                 block_y, block_z, shared_bytes, stream,
	                                                 parameters));
}

/* The ways of CUDA 3. */

CUresult cuLaunch(CUfunction function)
{
	CAREFULLY(function, NULL, false, DRIVER(cuLaunch)(function));
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	CAREFULLY(function, NULL, false, DRIVER(cuLaunchGrid)(function, width, height));
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	CAREFULLY(function, stream, false,
	          DRIVER(cuLaunchGridAsync)(function, width, height, stream));
}

/* On several devices at once. */

/* Make the context current that one of the launches is in, which its stream says. False if the
 * driver does not know: then it refuses them all. */
static bool enter(const CUDA_LAUNCH_PARAMS *one)
{
	CUcontext context = NULL;

	return DRIVER(cuStreamGetCtx)(one->hStream, &context) == CUDA_SUCCESS &&
	       DRIVER(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
}

static void leave(void)
{
	CUcontext context;

	(void)DRIVER(cuCtxPopCurrent_v2)(&context);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags)
{
	struct launch careful[PROCESS_ORDINALS];
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	unsigned int begun = 0;
	bool plain = true, fits = true;

	for (unsigned int i = 0; list && i < count; i++)
		plain = plain && function_is_plain(list[i].function);
	/* (A list that is longer than there are devices is refused.) */
	if (plain || count > PROCESS_ORDINALS)
		return DRIVER(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (; fits && begun < count; begun += fits) {
		careful[begun] = (struct launch){0};
		if (!enter(&list[begun]))
			continue;
		fits = launch_begin(&careful[begun], list[begun].function,
		                    stream_records(list[begun].hStream, false));
		leave();
	}
	if (fits)
		result = DRIVER(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (unsigned int i = 0; i < begun; i++) {
		if (!enter(&list[i]))
			continue;
		if (fits)
			(void)launch_end(&careful[i], result);
		else
			launch_drop(&careful[i]);
		leave();
	}
	return result;
}
