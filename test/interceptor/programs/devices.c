/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices: launches on two devices, in a slice with a quota on each. The memory for the kernels of
 * one launch on both is charged before it. If it does not fit on one, nothing runs and nothing is
 * charged. A launch in a stream of a device that is not current is charged there. Exits 0 if so.
 */
#include "code.h"
#include "driver.h"

#include "charged.h"

#include <stdarg.h>

#define DEVICES 2
#define ARRAY (256 * MIB)
#define FRAME 4096
#define FRESH_STACK 1024

/* For streams, and for the remainders of code's blocks of 2 MiB. */
#define SLACK (16 * (long long)MIB)

static struct {
	CUcontext context;
	CUstream stream;
	CUmodule module;
	CUfunction function;
	size_t before;
} on[DEVICES];

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	wrong = 1;
}

static size_t left_on(int device)
{
	OK(cuCtxSetCurrent(on[device].context));
	return left();
}

static void remember(void)
{
	for (int i = 0; i < DEVICES; i++)
		on[i].before = left_on(i);
}

/* Checks the charge since remember() at once, before driver truth could correct it. */
static void charged_on(int device, const char *step, long long bytes)
{
	long long now = (long long)on[device].before - (long long)left_on(device);

	if (llabs(now - bytes) > SLACK)
		complain("%s: %lld bytes are charged on device %d, not %lld", step, now, device,
		         bytes);
}

static void charged_on_both(const char *step, long long bytes)
{
	for (int i = 0; i < DEVICES; i++)
		charged_on(i, step, bytes);
}

static long long stacks(void)
{
	return (FRAME - FRESH_STACK) * card_threads();
}

static void fresh_stacks(void)
{
	for (int i = 0; i < DEVICES; i++) {
		OK(cuCtxSetCurrent(on[i].context));
		OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
	}
}

static CUresult launch(void)
{
	CUDA_LAUNCH_PARAMS list[DEVICES];
	CUcontext before = NULL, after = NULL;
	CUresult result;

	OK(cuCtxGetCurrent(&before));
	for (int i = 0; i < DEVICES; i++)
		list[i] = (CUDA_LAUNCH_PARAMS){.function = on[i].function,
		                               ONE_THREAD,
		                               .hStream = on[i].stream,
		                               .kernelParams = parameters};
	result = cuLaunchCooperativeKernelMultiDevice(list, DEVICES, 0);
	OK(cuCtxGetCurrent(&after));
	if (before != after)
		complain("another context is current");
	return result;
}

static void frames(void)
{
	static const size_t wanted[] = {FRAME, 0};
	size_t room;

	for (int i = 0; i < DEVICES; i++) {
		OK(cuCtxSetCurrent(on[i].context));
		OK(cuModuleLoadData(&on[i].module, module_text(0, wanted)));
		OK(cuModuleGetFunction(&on[i].function, on[i].module, "frame4096"));
	}
	remember();
	OK(launch());
	charged_on_both("a frame of 4 KiB", stacks());
	OK(launch());
	charged_on_both("the same again", stacks());
	fresh_stacks();
	charged_on_both("stacks lowered", 0);

	/* The last device is the full one. */
	for (int full = 0; full < DEVICES; full++) {
		CUdeviceptr pointer = 0;
		size_t stack = 0;

		room = left_on(full) - (size_t)stacks() + 64 * MIB;
		OK(cuMemAlloc_v2(&pointer, room));
		remember();
		expect("a launch that does not fit on one", launch(), CUDA_ERROR_OUT_OF_MEMORY);
		charged_on_both("refused before it", 0);
		for (int i = 0; i < DEVICES; i++) {
			OK(cuCtxSetCurrent(on[i].context));
			OK(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
			if (stack != FRESH_STACK)
				complain("the stack's limit on device %d is %zu", i, stack);
		}
		OK(cuCtxSetCurrent(on[full].context));
		OK(cuMemFree_v2(pointer));
	}
	remember();
	OK(launch());
	charged_on_both("granted later", stacks());
	fresh_stacks();
}

static void kernels(void)
{
	CUlibrary library = NULL;
	CUkernel kernel = NULL;

	OK(cuLibraryLoadData(&library, module_text(ARRAY, NULL), NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "empty"));
	for (int i = 0; i < DEVICES; i++)
		on[i].function = (CUfunction)(void *)kernel;
	remember();
	OK(launch());
	charged_on_both("a library's first use", (long long)ARRAY);
	OK(cuLibraryUnload(library));
	charged_on_both("unloaded", 0);
}

/* Launches in a stream of the device that is not current, and in a graph. */
static void elsewhere(void)
{
	static const size_t wanted[] = {FRAME, 0};
	CUlibrary library = NULL;
	CUkernel kernel = NULL;
	CUgraphExec executable = NULL;
	CUgraph graph = NULL;

	OK(cuLibraryLoadData(&library, module_text(ARRAY, wanted), NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "frame4096"));
	remember();
	OK(cuCtxSetCurrent(on[0].context));
	OK(cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, on[1].stream, parameters,
	                  NULL));
	charged_on(0, "launched on the other device", 0);
	charged_on(1, "launched there", (long long)ARRAY + stacks());
	OK(cuCtxSetCurrent(on[1].context));
	OK(cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, on[0].stream, parameters,
	                  NULL));
	charged_on_both("launched on both", (long long)ARRAY + stacks());
	OK(cuLibraryUnload(library));
	fresh_stacks();
	charged_on_both("unloaded", 0);

	OK(cuCtxSetCurrent(on[1].context));
	OK(cuModuleGetFunction(&on[1].function, on[1].module, "frame4096"));
	OK(cuStreamBeginCapture_v2(on[1].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel(on[1].function, 1, 1, 1, 1, 1, 1, 0, on[1].stream, parameters, NULL));
	OK(cuStreamEndCapture(on[1].stream, &graph));
	OK(cuCtxSetCurrent(on[0].context));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	charged_on(0, "a graph of the other device", 0);
	charged_on(1, "a graph's kernel", stacks());
	OK(cuGraphExecDestroy(executable));
	fresh_stacks();
	charged_on_both("at the end", 0);
}

int main(void)
{
	OK(cuInit(0));
	for (int i = 0; i < DEVICES; i++) {
		OK(cuCtxCreate_v2(&on[i].context, 0, i));
		OK(cuStreamCreate(&on[i].stream, 1));
	}
	frames();
	kernels();
	elsewhere();
	return wrong;
}
