/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for kernels' stacks: a launch, or a higher stack limit, grows it to the largest frame so
 * far. A launch that would exceed the quota is refused, and grows nothing. */
#include "rows_stack.h"

/* --- frames --- */

static CUstream launch_stream; /* NULL: a default stream */

static CUresult launch_kernel(CUfunction function, void **parameters)
{
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, launch_stream, parameters, NULL);
}

static CUresult launch_kernel_ptsz(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchKernel_ptsz)(function, 1, 1, 1, 1, 1, 1, 0, launch_stream,
	                                     parameters, NULL);
}

static CUlaunchConfig one_thread(void)
{
	return (CUlaunchConfig){ONE_THREAD, .hStream = launch_stream};
}

static CUresult launch_ex(CUfunction function, void **parameters)
{
	CUlaunchConfig config = one_thread();

	return OPTIONAL(cuLaunchKernelEx)(&config, function, parameters, NULL);
}

static CUresult launch_ex_ptsz(CUfunction function, void **parameters)
{
	CUlaunchConfig config = one_thread();

	return OPTIONAL(cuLaunchKernelEx_ptsz)(&config, function, parameters, NULL);
}

static CUresult launch_cooperative(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchCooperativeKernel)(function, 1, 1, 1, 1, 1, 1, 0, launch_stream,
	                                           parameters);
}

static CUresult launch_cooperative_ptsz(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchCooperativeKernel_ptsz)(function, 1, 1, 1, 1, 1, 1, 0,
	                                                launch_stream, parameters);
}

/* The functions of CUDA 3 set the block and the argument before the launch. */
static void prepare(CUfunction function, void **parameters)
{
	if (OPTIONAL(cuFuncSetBlockShape))
		OK(OPTIONAL(cuFuncSetBlockShape)(function, 1, 1, 1));
	if (OPTIONAL(cuParamSetSize))
		OK(OPTIONAL(cuParamSetSize)(function, sizeof(uint64_t)));
	if (OPTIONAL(cuParamSetv))
		OK(OPTIONAL(cuParamSetv)(function, 0, parameters[0], sizeof(uint64_t)));
}

static CUresult launch_cuda3(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunch)(function);
}

static CUresult launch_cuda3_grid(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunchGrid)(function, 1, 1);
}

static CUresult launch_cuda3_grid_async(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunchGridAsync)(function, 1, 1, NULL);
}

static const struct {
	const char *name;
	CUresult (*launch)(CUfunction function, void **parameters);
	bool takes_stream; /* can launch a library's kernel in a stream */
} launches[] = {{"cuLaunchKernel", launch_kernel, true},
                {"cuLaunchKernel_ptsz", launch_kernel_ptsz, true},
                {"cuLaunchKernelEx", launch_ex, true},
                {"cuLaunchKernelEx_ptsz", launch_ex_ptsz, true},
                {"cuLaunchCooperativeKernel", launch_cooperative, true},
                {"cuLaunchCooperativeKernel_ptsz", launch_cooperative_ptsz, true},
                {"cuLaunch", launch_cuda3, false},
                {"cuLaunchGrid", launch_cuda3_grid, false},
                {"cuLaunchGridAsync", launch_cuda3_grid_async, false}};

#define LAUNCHES (sizeof(launches) / sizeof(*launches))

static void frames_within(void)
{
	CUmodule module = load(module_text(0, frames));

	for (const size_t *frame = frames; *frame; frame++)
		(void)function_of(module, *frame);
	expect_charge("looked up and never launched", 0);
	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!driver_symbol(launches[i].name)) {
			report("no %s", launches[i].name);
			continue;
		}
		for (const size_t *frame = frames; *frame <= 4096; frame++) {
			expect(launches[i].name,
			       launches[i].launch(function_of(module, *frame), parameters),
			       CUDA_SUCCESS);
			OK(cuCtxSynchronize());
			expect_charge(launches[i].name, stacks(*frame));
		}
		OK(launch(function_of(module, 0)));
		OK(launch(function_of(module, 2048)));
		expect_charge("smaller ones after it", stacks(4096));
		shrink_stacks();
	}
	/* The stacks belong to the context and are freed with it, not with the code. */
	OK(launch(function_of(module, 2048)));
	OK(cuModuleUnload(module));
	expect_charge("the module unloaded", stacks(2048));
	shrink_stacks();
	report(
	    "frames of 1, 2 and 4 KiB charge %lld, %lld and %lld MiB when they are launched first",
	    stacks(1024) / (long long)MIB, stacks(2048) / (long long)MIB,
	    stacks(4096) / (long long)MIB);
}

static void frames_beyond(void)
{
	CUmodule module = load(module_text(0, frames));
	CUdeviceptr pointer = fill_but((size_t)stacks(4096) - 64 * MIB);

	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!driver_symbol(launches[i].name))
			continue;
		for (const size_t *frame = &frames[2]; *frame; frame++) {
			OUT_OF_MEMORY(launches[i].name,
			              launches[i].launch(function_of(module, *frame), parameters));
			expect_charge("refused", 0);
		}
	}
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu", stack_limit());
	OK(launch(function_of(module, 0)));
	OK(launch(function_of(module, 1024)));
	usable("memory after a refused launch", pointer, 16 * MIB);
	give_room(pointer);
	OK(launch(function_of(module, 4096)));
	expect_charge("granted later", stacks(4096));
	shrink_stacks();
	report("4, 64 and 200 KiB are refused with %lld MiB free, and 4 launched later",
	       stacks(4096) / (long long)MIB - 64);
}

/* A module with exactly one kernel, so that an enumeration returns it. */
static char *framed_text(size_t frame)
{
	struct text text = {0};

	text_add(&text, ".version 7.0\n.target sm_70\n.address_size 64\n");
	text_frame(&text, frame);
	return text.bytes;
}

static CUfunction listed_of_module(const char *text)
{
	CUfunction function = NULL;

	OK(OPTIONAL(cuModuleEnumerateFunctions)(&function, 1, load(text)));
	return function;
}

static CUfunction listed_of_library(const char *text)
{
	CUkernel kernel = NULL;

	OK(OPTIONAL(cuLibraryEnumerateKernels)(&kernel, 1, library_of(text)));
	return (CUfunction)(void *)kernel;
}

static const struct {
	const char *name; /* a driver function; older drivers lack it */
	CUfunction (*get)(const char *text);
} lists[] = {{"cuModuleEnumerateFunctions", listed_of_module},
             {"cuLibraryEnumerateKernels", listed_of_library}};

#define LISTS (sizeof(lists) / sizeof(*lists))

static void listed_within(void)
{
	for (size_t i = 0; i < LISTS; i++) {
		CUfunction function;

		if (!driver_symbol(lists[i].name))
			continue;
		function = lists[i].get(framed_text(4096));
		expect_charge(lists[i].name, 0);
		OK(launch(function));
		expect_charge("launched", stacks(4096));
		shrink_stacks();
		report("%s", lists[i].name);
	}
}

static void listed_beyond(void)
{
	CUdeviceptr pointer = fill_but((size_t)stacks(4096) - 64 * MIB);

	for (size_t i = 0; i < LISTS; i++) {
		if (!driver_symbol(lists[i].name))
			continue;
		OUT_OF_MEMORY(lists[i].name, launch(lists[i].get(framed_text(4096))));
		expect_charge("refused", 0);
		report("%s", lists[i].name);
	}
	give_room(pointer);
	expect_charge("at the end", 0);
}

/* Launches through the multi-device function, with one device. It needs a stream: no driver
 * accepts the default stream. */
static CUresult launch_many(CUfunction function)
{
	CUDA_LAUNCH_PARAMS one = {.function = function, ONE_THREAD, .kernelParams = parameters};
	CUresult result;

	OK(cuStreamCreate(&one.hStream, 1));
	result = OPTIONAL(cuLaunchCooperativeKernelMultiDevice)(&one, 1, 0);
	OK(cuCtxSynchronize());
	OK(cuStreamDestroy_v2(one.hStream));
	return result;
}

static bool not_on_many(CUresult result)
{
	if (result != CUDA_ERROR_NOT_SUPPORTED)
		return false;
	report("this driver does not launch on several devices");
	return true;
}

static void many_devices_within(void)
{
	CUresult result;

	if (!OPTIONAL(cuLaunchCooperativeKernelMultiDevice)) {
		report("no cuLaunchCooperativeKernelMultiDevice");
		return;
	}
	result = launch_many(function_of(load(module_text(0, frames)), 4096));
	if (not_on_many(result))
		return;
	expect("cuLaunchCooperativeKernelMultiDevice", result, CUDA_SUCCESS);
	expect_charge("launched", stacks(4096));
	shrink_stacks();
	report("a frame of 4 KiB charges %lld MiB", stacks(4096) / (long long)MIB);
}

static void many_devices_beyond(void)
{
	CUdeviceptr pointer;
	CUresult result;
	CUmodule module;

	if (!OPTIONAL(cuLaunchCooperativeKernelMultiDevice)) {
		report("no cuLaunchCooperativeKernelMultiDevice");
		return;
	}
	module = load(module_text(0, frames));
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	OUT_OF_MEMORY("cuLaunchCooperativeKernelMultiDevice",
	              launch_many(function_of(module, 4096)));
	expect_charge("refused", 0);
	give_room(pointer);
	result = launch_many(function_of(module, 4096));
	if (not_on_many(result))
		return;
	expect("cuLaunchCooperativeKernelMultiDevice", result, CUDA_SUCCESS);
	expect_charge("granted later", stacks(4096));
	shrink_stacks();
	report("4 KiB are refused with %lld MiB free, and launched later",
	       stacks(4096) / (long long)MIB - 64);
}

static void second_context_within(void)
{
	CUcontext context = NULL;
	long long cost;
	CUmodule module;
	size_t before = left();

	OK(cuCtxCreate_v2(&context, 0, 0));
	cost = (long long)before - (long long)left();
	module = load(module_text(0, frames));
	OK(launch(function_of(module, 2048)));
	expect_charge("a frame of 2 KiB", cost + stacks(2048));
	OK(cuCtxSetCurrent(own_context));
	module = load(module_text(0, frames));
	OK(launch(function_of(module, 2048)));
	expect_charge("the same in the first context", cost + 2 * stacks(2048));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	expect_charge("one destroyed", stacks(2048));
	shrink_stacks();
	report("%lld MiB in each of two contexts", stacks(2048) / (long long)MIB);
}

static void second_context_beyond(void)
{
	CUcontext context = NULL;
	CUdeviceptr pointer;
	CUmodule module;

	OK(launch(function_of(load(module_text(0, frames)), 2048)));
	OK(cuCtxCreate_v2(&context, 0, 0));
	module = load(module_text(0, frames));
	pointer = fill((size_t)stacks(2048) - 64 * MIB);
	OUT_OF_MEMORY("a launch in the second context", launch(function_of(module, 2048)));
	OK(cuMemFree_v2(pointer));
	OK(launch(function_of(module, 2048)));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	expect_charge("destroyed", stacks(2048));
	shrink_stacks();
	report("stacks are charged to each context");
}

/* A library's kernel, launched in a stream of a context that is not current: it runs there, and its
 * stacks are charged there. */
struct other_context {
	CUcontext context;
	CUstream stream;
	CUlibrary library;
	CUfunction kernel;
	long long cost;
};

#define MODULE_ARRAY_BYTES (128 * MIB)

static struct other_context make_other_context(void)
{
	static const size_t wanted[] = {2048, 0};
	struct other_context made = {0};
	size_t before = left();
	CUkernel kernel = NULL;

	OK(cuCtxCreate_v2(&made.context, 0, 0));
	OK(cuStreamCreate(&made.stream, 1));
	made.cost = (long long)before - (long long)left();
	OK(cuCtxSetCurrent(own_context));
	made.library = library_of(module_text(MODULE_ARRAY_BYTES, wanted));
	OK(OPTIONAL(cuLibraryGetKernel)(&kernel, made.library, "frame2048"));
	made.kernel = (CUfunction)(void *)kernel;
	return made;
}

static void lower_there(const struct other_context *there)
{
	OK(cuCtxSetCurrent(there->context));
	OK(cuCtxSynchronize());
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
	OK(cuCtxSetCurrent(own_context));
}

static bool lacks_libraries(void)
{
	if (driver_symbol("cuLibraryGetKernel"))
		return false;
	report("this driver has no libraries");
	return true;
}

static void streams_within(void)
{
	struct other_context there = make_other_context();

	expect_charge("nothing launched", there.cost);
	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!launches[i].takes_stream || !driver_symbol(launches[i].name))
			continue;
		launch_stream = there.stream;
		expect(launches[i].name, launches[i].launch(there.kernel, parameters),
		       CUDA_SUCCESS);
		launch_stream = NULL;
		expect_charge(launches[i].name,
		              there.cost + (long long)MODULE_ARRAY_BYTES + stacks(2048));
		still_here();
		lower_there(&there);
		expect_charge("lowered there", there.cost + (long long)MODULE_ARRAY_BYTES);
	}
	/* In the default stream it runs in the current context. */
	OK(launch(there.kernel));
	expect_charge("launched here",
	              there.cost + 2 * (long long)MODULE_ARRAY_BYTES + stacks(2048));
	shrink_stacks_but(there.cost + 2 * (long long)MODULE_ARRAY_BYTES);
	/* Its memory in the other context is freed with that. */
	launch_stream = there.stream;
	OK(launch_kernel(there.kernel, parameters));
	launch_stream = NULL;
	OK(cuCtxDestroy_v2(there.context));
	OK(cuCtxSetCurrent(own_context));
	expect_charge("the stream's context destroyed", (long long)MODULE_ARRAY_BYTES);
	OK(OPTIONAL(cuLibraryUnload)(there.library));
	expect_charge("at the end", 0);
	report("%zu MiB of code and %lld of stacks are charged to the stream's context",
	       MODULE_ARRAY_BYTES / MIB, stacks(2048) / (long long)MIB);
}

static void streams_beyond(void)
{
	CUdeviceptr pointer;
	struct other_context there = make_other_context();

	OK(launch(there.kernel));
	pointer = fill_but((size_t)stacks(2048) + 16 * MIB);
	launch_stream = there.stream;
	for (size_t i = 0; i < LAUNCHES; i++)
		if (launches[i].takes_stream && driver_symbol(launches[i].name))
			OUT_OF_MEMORY(launches[i].name,
			              launches[i].launch(there.kernel, parameters));
	launch_stream = NULL;
	OK(launch(there.kernel));
	give_room(pointer);
	launch_stream = there.stream;
	OK(launch_kernel(there.kernel, parameters));
	launch_stream = NULL;
	expect_charge("granted later",
	              there.cost + 2 * (long long)MODULE_ARRAY_BYTES + 2 * stacks(2048));
	OK(cuCtxDestroy_v2(there.context));
	OK(cuCtxSetCurrent(own_context));
	OK(OPTIONAL(cuLibraryUnload)(there.library));
	shrink_stacks();
	report("stacks of the current context do not serve the stream's");
}

/* --- limits --- */

static void stack_within(void)
{
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	expect_charge("4 KiB", stacks(4096));
	OK(launch(function_of(load(module_text(0, frames)), 2048)));
	expect_charge("a launch within it", stacks(4096));
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	expect_charge("2 KiB", stacks(2048));
	shrink_stacks();
	report("a stack of 4 KiB charges %lld MiB, of 2 KiB %lld", stacks(4096) / (long long)MIB,
	       stacks(2048) / (long long)MIB);
}

static void stack_beyond(void)
{
	CUdeviceptr pointer;

	OUT_OF_MEMORY("64 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536));
	expect_charge("refused", 0);
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	OUT_OF_MEMORY("4 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	expect_charge("refused, too", 0);
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu", stack_limit());
	give_room(pointer);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	shrink_stacks();
	report("a limit that does not fit is refused, and the old limit stays");
}

const struct row stack_rows[] = {
    {"code-frames",
     "cuModuleGetFunction cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx "
     "cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz "
     "cuLaunch cuLaunchGrid cuLaunchGridAsync cuCtxSetLimit",
     frames_within, .beyond = frames_beyond},
    {"code-listed", "cuModuleEnumerateFunctions cuLibraryEnumerateKernels cuLaunchKernel",
     listed_within, .beyond = listed_beyond},
    {"code-devices", "cuLaunchCooperativeKernelMultiDevice", many_devices_within,
     .beyond = many_devices_beyond},
    {"code-second", "cuLaunchKernel cuCtxCreate_v2 cuCtxDestroy_v2", second_context_within,
     .beyond = second_context_beyond},
    {"code-elsewhere",
     "cuLibraryGetKernel cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx "
     "cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz "
     "cuCtxDestroy_v2",
     streams_within, .beyond = streams_beyond, .lacks = lacks_libraries},
    {"code-stack", "cuCtxSetLimit", stack_within, .beyond = stack_beyond},
    {0}};
