/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels. Nearly all pass after one comparison; function.h has those that may take
 * memory. */
#include "function.h"
#include "stream.h"
#include "table.h"

/* A kernel runs in its stream's context, whichever is current. */

static __attribute__((noinline)) bool begin(struct launch *careful, const void *function,
                                            CUstream stream, bool per_thread)
{
	CUcontext context = stream_context(stream);
	bool recorded, pushed, fits;

	*careful = (struct launch){0};
	if (!launch_may_take(function, context))
		return true;
	recorded = stream_records(stream, per_thread);
	pushed = context_push(context);
	fits = launch_begin(careful, function, recorded);
	context_pop(pushed);
	return fits;
}

static __attribute__((noinline)) void end(const struct launch *careful, CUstream stream)
{
	bool pushed;

	if (!careful->loads && !careful->raise.context)
		return;
	pushed = context_push(stream_context(stream));
	launch_end(careful);
	context_pop(pushed);
}

/* Make `call` between begin() and end(). */
#define CAREFULLY(function, stream, per_thread, call)                                              \
	do {                                                                                       \
		struct launch careful;                                                             \
		CUresult result;                                                                   \
                                                                                                   \
		if (__builtin_expect(function_is_plain(function), 1))                              \
			return call;                                                               \
		if (!begin(&careful, function, stream, per_thread))                                \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = call;                                                                     \
		end(&careful, stream);                                                             \
		return result;                                                                     \
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

/* Launches of CUDA 3. */

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

/* Launches on several devices at once. */

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags)
{
	struct launch careful[PROCESS_ORDINALS];
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	unsigned int begun = 0;
	bool plain = true, fits = true;

	for (unsigned int i = 0; list && i < count; i++)
		plain = plain && function_is_plain(list[i].function);
	/* The driver refuses a list longer than the number of devices. */
	if (plain || count > PROCESS_ORDINALS)
		return DRIVER(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (; fits && begun < count; begun += fits)
		fits = begin(&careful[begun], list[begun].function, list[begun].hStream, false);
	if (fits)
		result = DRIVER(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	for (unsigned int i = 0; i < begun; i++)
		end(&careful[i], list[i].hStream);
	return result;
}
