/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels. Nearly all pass after one comparison (function.h). */
#include "function.h"
#include "library.h"
#include "stack.h"
#include "stream.h"
#include "table.h"

/* A launch that may take memory. */
struct launch {
	bool loads; /* recorded: the driver may load its library for that */
	struct raise raise;
};

static bool load(const void *kernel, uint64_t library)
{
	CUfunction function;
	struct use use;

	if (!DRIVER_HAS(cuKernelGetFunction))
		return true;
	if (!library_use_begin(&use, library))
		return false;
	if (!use.first)
		return true;
	return library_use_end(&use, DRIVER(cuKernelGetFunction)(&function, (CUkernel)kernel)) !=
	       CUDA_ERROR_OUT_OF_MEMORY;
}

/* A kernel runs in its stream's context, whichever is current. Charge the raise of the stack, and
 * load the library; neither if the launch is only recorded. False if this does not fit: the launch
 * is then not made. */
static __attribute__((noinline)) bool begin(struct launch *careful, const void *function,
                                            CUstream stream, bool per_thread)
{
	CUcontext context = stream_context(stream);
	struct function found;
	bool missing;

	*careful = (struct launch){0};
	(void)function_find(function, &found);
	missing = found.is_new &&
	          !function_library_is_in(context ? context_owner(context) : context_current(),
	                                  found.source);
	/* Mostly so: the kernel's library is missing only in another context. */
	if (!missing && found.frame <= STACK_DEFAULT)
		return true;
	if (stream_records(stream, per_thread)) {
		careful->loads = missing;
		return true;
	}
	IN_CONTEXT(context);
	return (!missing || load(function, found.source)) &&
	       (found.frame <= STACK_DEFAULT || stack_begin(&careful->raise, found.frame, false));
}

static __attribute__((noinline)) void end(const struct launch *careful, CUstream stream)
{
	if (!careful->loads && !careful->raise.context)
		return;
	IN_CONTEXT(stream_context(stream));
	stack_end(&careful->raise);
	/* A library loaded for it stays, like a used one. */
	if (careful->loads)
		overhead_leave_open(process_current_ordinal());
}

/* Define a hook that makes the driver's call between begin() and end(). */
#define LAUNCH(name, parameters, arguments, stream, per_thread)                                    \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct launch careful;                                                             \
		CUresult result;                                                                   \
                                                                                                   \
		if (__builtin_expect(function_is_plain(function), 1))                              \
			return DRIVER(name) arguments;                                             \
		if (!begin(&careful, function, stream, per_thread))                                \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = DRIVER(name) arguments;                                                   \
		end(&careful, stream);                                                             \
		return result;                                                                     \
	}

/* The same, and its twin for the thread's own default stream. */
#define LAUNCHES(name, parameters, arguments, stream)                                              \
	LAUNCH(name, parameters, arguments, stream, false)                                         \
	LAUNCH(name##_ptsz, parameters, arguments, stream, true)

LAUNCHES(cuLaunchKernel,
         (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
          unsigned int block_x, unsigned int block_y, unsigned int block_z,
          unsigned int shared_bytes, CUstream stream, void **parameters, void **extra),
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
          parameters, extra),
         stream)
LAUNCHES(cuLaunchKernelEx,
         (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
         (config, function, parameters, extra), config ? config->hStream : NULL)
LAUNCHES(cuLaunchCooperativeKernel,
         (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
          unsigned int block_x, unsigned int block_y, unsigned int block_z,
          unsigned int shared_bytes, CUstream stream, void **parameters),
         (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream,
          parameters),
         stream)

/* Launches of CUDA 3. */
LAUNCH(cuLaunch, (CUfunction function), (function), NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height), NULL,
       false)
LAUNCH(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
       (function, width, height, stream), stream, false)

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
