/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver takes for the stacks of kernels: local memory for the largest frame, of a launch,
 * in a graph, or by its limit. What a launch would take is refused before it.
 */
#include "rows_code.h"

#define FRESH_STACK 1024 /* bytes of each thread, in a fresh context */

/* Local memory is taken for all threads that the card can run at a time, however few are started.
 */
static long long stacks(size_t frame)
{
	int processors = 0, threads = 0;

	OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	OK(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
	if (!processors || !threads)
		failed("the card does not say how many threads it can run");
	return ((long long)frame - FRESH_STACK) * processors * threads;
}

/* All frames of these rows. The last two fit no quota of 16 GiB or less. */
static const size_t frames[] = {1024, 2048, 4096, 65536, 204800, 0};

static CUfunction function_of(CUmodule module, size_t frame)
{
	CUfunction function = NULL;
	char name[32];

	snprintf(name, sizeof(name), frame ? "frame%zu" : "empty", frame);
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* --- frames --- */

static CUstream in; /* NULL: a default one */

static CUresult plainly(CUfunction function, void **parameters)
{
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, in, parameters, NULL);
}

static CUresult of_thread(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchKernel_ptsz)(function, 1, 1, 1, 1, 1, 1, 0, in, parameters, NULL);
}

static CUlaunchConfig one(void)
{
	return (CUlaunchConfig){.gridDimX = 1,
	                        .gridDimY = 1,
	                        .gridDimZ = 1,
	                        .blockDimX = 1,
	                        .blockDimY = 1,
	                        .blockDimZ = 1,
	                        .hStream = in};
}

static CUresult configured(CUfunction function, void **parameters)
{
	CUlaunchConfig config = one();

	return OPTIONAL(cuLaunchKernelEx)(&config, function, parameters, NULL);
}

static CUresult configured_of_thread(CUfunction function, void **parameters)
{
	CUlaunchConfig config = one();

	return OPTIONAL(cuLaunchKernelEx_ptsz)(&config, function, parameters, NULL);
}

static CUresult together(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchCooperativeKernel)(function, 1, 1, 1, 1, 1, 1, 0, in, parameters);
}

static CUresult together_of_thread(CUfunction function, void **parameters)
{
	return OPTIONAL(cuLaunchCooperativeKernel_ptsz)(function, 1, 1, 1, 1, 1, 1, 0, in,
	                                                parameters);
}

/* The ways of CUDA 3, which are told the block and the argument beforehand. */
static void prepare(CUfunction function, void **parameters)
{
	if (OPTIONAL(cuFuncSetBlockShape))
		OK(OPTIONAL(cuFuncSetBlockShape)(function, 1, 1, 1));
	if (OPTIONAL(cuParamSetSize))
		OK(OPTIONAL(cuParamSetSize)(function, sizeof(uint64_t)));
	if (OPTIONAL(cuParamSetv))
		OK(OPTIONAL(cuParamSetv)(function, 0, parameters[0], sizeof(uint64_t)));
}

static CUresult of_old(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunch)(function);
}

static CUresult of_old_grid(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunchGrid)(function, 1, 1);
}

static CUresult of_old_stream(CUfunction function, void **parameters)
{
	prepare(function, parameters);
	return OPTIONAL(cuLaunchGridAsync)(function, 1, 1, NULL);
}

static const struct {
	const char *name;
	CUresult (*launch)(CUfunction function, void **parameters);
	bool of_library; /* takes a library's kernel, and a stream */
} launches[] = {{"cuLaunchKernel", plainly, true},
                {"cuLaunchKernel_ptsz", of_thread, true},
                {"cuLaunchKernelEx", configured, true},
                {"cuLaunchKernelEx_ptsz", configured_of_thread, true},
                {"cuLaunchCooperativeKernel", together, true},
                {"cuLaunchCooperativeKernel_ptsz", together_of_thread, true},
                {"cuLaunch", of_old, false},
                {"cuLaunchGrid", of_old_grid, false},
                {"cuLaunchGridAsync", of_old_stream, false}};

#define LAUNCHES (sizeof(launches) / sizeof(*launches))

/* Local memory back to what a fresh context has, with other things charged or not. */
static void no_stacks_but(long long bytes)
{
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
	takes("the stack's limit lowered", bytes);
}

static void no_stacks(void)
{
	no_stacks_but(0);
}

static size_t stack_limit(void)
{
	size_t bytes = 0;

	OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
	return bytes;
}

static void frames_within(void)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	CUmodule module;

	begin();
	module = load(module_text(0, frames));
	for (const size_t *frame = frames; *frame; frame++)
		(void)function_of(module, *frame);
	takes("looked up and never launched", 0);
	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!driver_symbol(launches[i].name)) {
			saw("no %s", launches[i].name);
			continue;
		}
		for (const size_t *frame = frames; *frame <= 4096; frame++) {
			expect(launches[i].name,
			       launches[i].launch(function_of(module, *frame), parameters),
			       CUDA_SUCCESS);
			OK(cuCtxSynchronize());
			takes(launches[i].name, stacks(*frame));
		}
		OK(launch(function_of(module, 0)));
		OK(launch(function_of(module, 2048)));
		takes("smaller ones after it", stacks(4096));
		no_stacks();
	}
	/* It is the context's and goes with it, not with the code. */
	OK(launch(function_of(module, 2048)));
	OK(cuModuleUnload(module));
	takes("the module unloaded", stacks(2048));
	no_stacks();
	saw("frames of 1, 2 and 4 KiB charge %lld, %lld and %lld MiB when they are launched first",
	    stacks(1024) / (long long)MIB, stacks(2048) / (long long)MIB,
	    stacks(4096) / (long long)MIB);
}

static void frames_beyond(void)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	CUdeviceptr pointer;
	CUmodule module;

	begin();
	module = load(module_text(0, frames));
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!driver_symbol(launches[i].name))
			continue;
		for (const size_t *frame = &frames[2]; *frame; frame++) {
			OUT_OF_MEMORY(launches[i].name,
			              launches[i].launch(function_of(module, *frame), parameters));
			takes("refused before it", 0);
		}
	}
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu", stack_limit());
	/* The context is as good as before. */
	OK(launch(function_of(module, 0)));
	OK(launch(function_of(module, 1024)));
	usable("memory after a refused launch", pointer, 16 * MIB);
	give_room(pointer);
	OK(launch(function_of(module, 4096)));
	takes("granted later", stacks(4096));
	no_stacks();
	saw("4, 64 and 200 KiB are refused with %lld MiB free, and 4 launched later",
	    stacks(4096) / (long long)MIB - 64);
}

/* One kernel with a frame, so that whatever is enumerated is that. */
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
	const char *name; /* of what a driver may lack */
	CUfunction (*get)(const char *text);
} lists[] = {{"cuModuleEnumerateFunctions", listed_of_module},
             {"cuLibraryEnumerateKernels", listed_of_library}};

#define LISTS (sizeof(lists) / sizeof(*lists))

static void listed_within(void)
{
	begin();
	for (size_t i = 0; i < LISTS; i++) {
		CUfunction function;

		if (!driver_symbol(lists[i].name))
			continue;
		function = lists[i].get(framed_text(4096));
		takes(lists[i].name, 0);
		OK(launch(function));
		takes("launched", stacks(4096));
		no_stacks();
		saw("%s", lists[i].name);
	}
}

static void listed_beyond(void)
{
	CUdeviceptr pointer;

	begin();
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	for (size_t i = 0; i < LISTS; i++) {
		if (!driver_symbol(lists[i].name))
			continue;
		OUT_OF_MEMORY(lists[i].name, launch(lists[i].get(framed_text(4096))));
		takes("refused before it", 0);
		saw("%s", lists[i].name);
	}
	give_room(pointer);
	takes("at the end", 0);
}

/* On several devices at once, here on one: no driver takes the default stream for it. */
static CUresult launch_many(CUfunction function)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	CUDA_LAUNCH_PARAMS one = {.function = function,
	                          .gridDimX = 1,
	                          .gridDimY = 1,
	                          .gridDimZ = 1,
	                          .blockDimX = 1,
	                          .blockDimY = 1,
	                          .blockDimZ = 1,
	                          .kernelParams = parameters};
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
	saw("this driver does not launch on several devices");
	return true;
}

static void many_devices_within(void)
{
	CUresult result;

	begin();
	if (!OPTIONAL(cuLaunchCooperativeKernelMultiDevice)) {
		saw("no cuLaunchCooperativeKernelMultiDevice");
		return;
	}
	result = launch_many(function_of(load(module_text(0, frames)), 4096));
	if (not_on_many(result))
		return;
	expect("cuLaunchCooperativeKernelMultiDevice", result, CUDA_SUCCESS);
	takes("launched", stacks(4096));
	no_stacks();
	saw("a frame of 4 KiB charges %lld MiB", stacks(4096) / (long long)MIB);
}

static void many_devices_beyond(void)
{
	CUdeviceptr pointer;
	CUresult result;
	CUmodule module;

	begin();
	if (!OPTIONAL(cuLaunchCooperativeKernelMultiDevice)) {
		saw("no cuLaunchCooperativeKernelMultiDevice");
		return;
	}
	module = load(module_text(0, frames));
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	OUT_OF_MEMORY("cuLaunchCooperativeKernelMultiDevice",
	              launch_many(function_of(module, 4096)));
	takes("refused before it", 0);
	give_room(pointer);
	result = launch_many(function_of(module, 4096));
	if (not_on_many(result))
		return;
	expect("cuLaunchCooperativeKernelMultiDevice", result, CUDA_SUCCESS);
	takes("granted later", stacks(4096));
	no_stacks();
	saw("4 KiB are refused with %lld MiB free, and launched later",
	    stacks(4096) / (long long)MIB - 64);
}

/* Each context has its own. */
static void second_within(void)
{
	CUcontext context = NULL;
	size_t before;
	long long cost;
	CUmodule module;

	begin();
	before = left();
	OK(cuCtxCreate_v2(&context, 0, 0));
	cost = (long long)before - (long long)left();
	module = load(module_text(0, frames));
	OK(launch(function_of(module, 2048)));
	takes("a frame of 2 KiB", cost + stacks(2048));
	OK(cuCtxSetCurrent(own_context));
	module = load(module_text(0, frames));
	OK(launch(function_of(module, 2048)));
	takes("the same in the first context", cost + 2 * stacks(2048));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	takes("one destroyed", stacks(2048));
	no_stacks();
	saw("%lld MiB in each of two contexts", stacks(2048) / (long long)MIB);
}

static void second_beyond(void)
{
	CUcontext context = NULL;
	CUdeviceptr pointer;
	CUmodule module;

	begin();
	OK(launch(function_of(load(module_text(0, frames)), 2048)));
	OK(cuCtxCreate_v2(&context, 0, 0));
	module = load(module_text(0, frames));
	pointer = fill((size_t)stacks(2048) - 64 * MIB);
	OUT_OF_MEMORY("what the first context has", launch(function_of(module, 2048)));
	OK(cuMemFree_v2(pointer));
	OK(launch(function_of(module, 2048)));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	takes("destroyed", stacks(2048));
	no_stacks();
	saw("what one context has taken is not another's");
}

/* A library's kernel, launched in a stream of another context than the one that is current: it runs
 * there, and takes there what it takes. */
struct elsewhere {
	CUcontext context;
	CUstream stream;
	CUlibrary library;
	CUfunction kernel;
	long long cost; /* of the context */
};

#define ARRAY (128 * MIB)

static struct elsewhere elsewhere(void)
{
	static const size_t wanted[] = {2048, 0};
	struct elsewhere made = {0};
	size_t before = left();
	CUkernel kernel = NULL;

	OK(cuCtxCreate_v2(&made.context, 0, 0));
	OK(cuStreamCreate(&made.stream, 1));
	made.cost = (long long)before - (long long)left();
	OK(cuCtxSetCurrent(own_context));
	made.library = library_of(module_text(ARRAY, wanted));
	OK(OPTIONAL(cuLibraryGetKernel)(&kernel, made.library, "frame2048"));
	made.kernel = (CUfunction)(void *)kernel;
	return made;
}

static void lower_there(const struct elsewhere *there)
{
	OK(cuCtxSetCurrent(there->context));
	OK(cuCtxSynchronize());
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
	OK(cuCtxSetCurrent(own_context));
}

static void still_here(void)
{
	CUcontext current = NULL;

	OK(cuCtxGetCurrent(&current));
	if (current != own_context)
		failed("another context is current");
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu here", stack_limit());
}

static bool no_kernels(void)
{
	if (driver_symbol("cuLibraryGetKernel"))
		return false;
	saw("this driver has no libraries");
	return true;
}

static void streams_within(void)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	struct elsewhere there;

	begin();
	if (no_kernels())
		return;
	there = elsewhere();
	takes("nothing launched", there.cost);
	for (size_t i = 0; i < LAUNCHES; i++) {
		if (!launches[i].of_library || !driver_symbol(launches[i].name))
			continue;
		in = there.stream;
		expect(launches[i].name, launches[i].launch(there.kernel, parameters),
		       CUDA_SUCCESS);
		in = NULL;
		takes(launches[i].name, there.cost + (long long)ARRAY + stacks(2048));
		still_here();
		lower_there(&there);
		takes("lowered there", there.cost + (long long)ARRAY);
	}
	/* In the default stream it runs here. */
	OK(launch(there.kernel));
	takes("launched here", there.cost + 2 * (long long)ARRAY + stacks(2048));
	no_stacks_but(there.cost + 2 * (long long)ARRAY);
	/* What it took there goes with that context. */
	in = there.stream;
	OK(plainly(there.kernel, parameters));
	in = NULL;
	OK(cuCtxDestroy_v2(there.context));
	OK(cuCtxSetCurrent(own_context));
	takes("the stream's context destroyed", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(there.library));
	takes("at the end", 0);
	saw("%zu MiB of code and %lld of stacks are charged to the stream's context", ARRAY / MIB,
	    stacks(2048) / (long long)MIB);
}

static void streams_beyond(void)
{
	uint64_t none = 0;
	void *parameters[] = {&none};
	struct elsewhere there;
	CUdeviceptr pointer;

	begin();
	if (no_kernels())
		return;
	there = elsewhere();
	/* Here there is all that it needs. */
	OK(launch(there.kernel));
	pointer = fill_but((size_t)stacks(2048) + 16 * MIB);
	in = there.stream;
	for (size_t i = 0; i < LAUNCHES; i++)
		if (launches[i].of_library && driver_symbol(launches[i].name))
			OUT_OF_MEMORY(launches[i].name,
			              launches[i].launch(there.kernel, parameters));
	in = NULL;
	OK(launch(there.kernel));
	give_room(pointer);
	in = there.stream;
	OK(plainly(there.kernel, parameters));
	in = NULL;
	takes("granted later", there.cost + 2 * (long long)ARRAY + 2 * stacks(2048));
	OK(cuCtxDestroy_v2(there.context));
	OK(cuCtxSetCurrent(own_context));
	OK(OPTIONAL(cuLibraryUnload)(there.library));
	no_stacks();
	saw("what the current context has is not the stream's");
}

/* --- graphs --- */

static CUDA_KERNEL_NODE_PARAMS node_of(CUfunction function, void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function,
	                                 .gridDimX = 1,
	                                 .gridDimY = 1,
	                                 .gridDimZ = 1,
	                                 .blockDimX = 1,
	                                 .blockDimY = 1,
	                                 .blockDimZ = 1,
	                                 .kernelParams = parameters};
}

static bool no_kernel_nodes(void)
{
	if (driver_symbol("cuGraphAddKernelNode_v2"))
		return false;
	saw("this driver has no cuGraphAddKernelNode_v2");
	return true;
}

static CUgraph graph_of(CUfunction function, CUgraphNode *node)
{
	static uint64_t none;
	static void *parameters[] = {&none};
	CUDA_KERNEL_NODE_PARAMS kernel = node_of(function, parameters);
	CUgraph graph = NULL;

	OK(cuGraphCreate(&graph, 0));
	OK(OPTIONAL(cuGraphAddKernelNode_v2)(node, graph, NULL, 0, &kernel));
	return graph;
}

static CUresult change(CUgraphExec executable, CUgraphNode node, CUfunction function)
{
	static uint64_t none;
	static void *parameters[] = {&none};
	CUDA_KERNEL_NODE_PARAMS kernel = node_of(function, parameters);

	return OPTIONAL(cuGraphExecKernelNodeSetParams_v2)(executable, node, &kernel);
}

/* The same by what sets a node of any type, whose structure ends in zeros. */
static CUresult change_any(CUgraphExec executable, CUgraphNode node, CUfunction function)
{
	static uint64_t none;
	static void *parameters[] = {&none};
	union {
		unsigned char bytes[256];
		struct CUgraphNodeParams_st is;
	} any = {0};

	static_assert(offsetof(struct CUgraphNodeParams_st, kernel) == 16, "CUgraphNodeParams");
	any.is.type = CU_GRAPH_NODE_TYPE_KERNEL;
	any.is.kernel = node_of(function, parameters);
	return OPTIONAL(cuGraphExecNodeSetParams)(executable, node, &any.is);
}

static void run_and_end(CUgraphExec executable, long long bytes)
{
	OK(cuGraphLaunch(executable, NULL));
	OK(cuCtxSynchronize());
	takes("launched", bytes);
	OK(cuGraphExecDestroy(executable));
}

static void graphs_within(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUgraph graph = NULL;
	CUstream stream = NULL;
	CUmodule module;

	begin();
	if (no_kernel_nodes())
		return;
	module = load(module_text(0, frames));
	graph = graph_of(function_of(module, 2048), &node);
	takes("a node", 0);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	takes("instantiated", stacks(2048));
	if (driver_symbol("cuGraphExecKernelNodeSetParams_v2")) {
		OK(change(executable, node, function_of(module, 4096)));
		takes("another kernel in it", stacks(4096));
		run_and_end(executable, stacks(4096));
	} else {
		run_and_end(executable, stacks(2048));
	}
	OK(cuGraphDestroy(graph));
	no_stacks();
	/* Captured from a stream. */
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	{
		uint64_t none = 0;
		void *parameters[] = {&none};

		OK(cuLaunchKernel(function_of(module, 2048), 1, 1, 1, 1, 1, 1, 0, stream,
		                  parameters, NULL));
	}
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	takes("captured and instantiated", stacks(2048));
	run_and_end(executable, stacks(2048));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(stream));
	no_stacks();
	saw("a graph takes %lld MiB for a frame of 2 KiB when it is instantiated",
	    stacks(2048) / (long long)MIB);
}

static void graphs_beyond(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUgraph large, small;
	CUdeviceptr pointer;
	CUmodule module;

	begin();
	if (no_kernel_nodes())
		return;
	module = load(module_text(0, frames));
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	large = graph_of(function_of(module, 4096), &node);
	OUT_OF_MEMORY("to instantiate", cuGraphInstantiateWithFlags(&executable, large, 0));
	takes("refused before it", 0);
	small = graph_of(function_of(module, 0), &node);
	OK(cuGraphInstantiateWithFlags(&executable, small, 0));
	if (driver_symbol("cuGraphExecKernelNodeSetParams_v2")) {
		OUT_OF_MEMORY("another kernel in it",
		              change(executable, node, function_of(module, 4096)));
		takes("refused before it", 0);
	}
	run_and_end(executable, 0);
	give_room(pointer);
	OK(cuGraphInstantiateWithFlags(&executable, large, 0));
	takes("granted later", stacks(4096));
	run_and_end(executable, stacks(4096));
	no_stacks();
	saw("a graph with a frame of 4 KiB is refused with %lld MiB free",
	    stacks(4096) / (long long)MIB - 64);
}

/* The kernels of a graph take their stacks in their own contexts, whichever is current. */
static void graph_contexts_within(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUcontext second = NULL;
	CUgraph graph, small;
	CUmodule module, other;
	long long cost;
	size_t before;

	begin();
	if (no_kernel_nodes())
		return;
	module = load(module_text(0, frames));
	before = left();
	OK(cuCtxCreate_v2(&second, 0, 0));
	cost = (long long)before - (long long)left();
	other = load(module_text(0, frames));
	graph = graph_of(function_of(other, 2048), &node);
	OK(cuCtxSetCurrent(own_context));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	takes("instantiated", cost + stacks(2048));
	still_here();
	run_and_end(executable, cost + stacks(2048));
	small = graph_of(function_of(module, 0), &node);
	OK(cuGraphInstantiateWithFlags(&executable, small, 0));
	if (driver_symbol("cuGraphExecUpdate_v2")) {
		CUgraphExecUpdateResultInfo info = {0};

		OK(cuCtxSetCurrent(second));
		OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
		OK(cuCtxSetCurrent(own_context));
		takes("lowered there", cost);
		/* (Whether a kernel may change its context so is the driver's to say.) */
		if (OPTIONAL(cuGraphExecUpdate_v2)(executable, graph, &info) == CUDA_SUCCESS)
			takes("updated", cost + stacks(2048));
	}
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(small));
	OK(cuGraphDestroy(graph));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	takes("its context destroyed", 0);
	saw("%lld MiB in the context of a graph's kernel, which is not current",
	    stacks(2048) / (long long)MIB);
}

static void graph_contexts_beyond(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUcontext second = NULL;
	CUdeviceptr pointer;
	CUmodule other;
	CUgraph graph;

	begin();
	if (no_kernel_nodes())
		return;
	OK(launch(function_of(load(module_text(0, frames)), 2048)));
	OK(cuCtxCreate_v2(&second, 0, 0));
	other = load(module_text(0, frames));
	graph = graph_of(function_of(other, 2048), &node);
	OK(cuCtxSetCurrent(own_context));
	pointer = fill_but((size_t)stacks(2048) - 64 * MIB);
	OUT_OF_MEMORY("to instantiate", cuGraphInstantiateWithFlags(&executable, graph, 0));
	give_room(pointer);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	no_stacks();
	saw("what the current context has is not the one's of a graph's kernel");
}

/* Other ways for a frame to get into a graph that is launched. Each gives the first error that it
 * meets, whichever of the calls has it. */
static CUresult instantiate_and_run(CUgraph graph)
{
	CUgraphExec executable = NULL;
	CUresult result = cuGraphInstantiateWithFlags(&executable, graph, 0);

	if (result == CUDA_SUCCESS) {
		result = cuGraphLaunch(executable, NULL);
		OK(cuCtxSynchronize());
		OK(cuGraphExecDestroy(executable));
	}
	OK(cuGraphDestroy(graph));
	return result;
}

static CUresult graph_of_handle(CUmodule module)
{
	static const size_t few[] = {4096, 0};
	CUDA_KERNEL_NODE_PARAMS kernel;
	static CUlibrary library;
	CUgraphNode node = NULL;
	CUgraph graph = NULL;
	uint64_t none = 0;
	void *parameters[] = {&none};

	(void)module;
	if (!library)
		library = library_of(module_text(0, few));
	kernel = node_of(NULL, parameters);
	OK(OPTIONAL(cuLibraryGetKernel)(&kernel.kern, library, "frame4096"));
	OK(cuGraphCreate(&graph, 0));
	OK(OPTIONAL(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0, &kernel));
	return instantiate_and_run(graph);
}

static CUresult graph_of_changed_node(CUmodule module)
{
	CUgraphNode node = NULL;
	CUgraph graph = graph_of(function_of(module, 0), &node);
	uint64_t none = 0;
	void *parameters[] = {&none};
	CUDA_KERNEL_NODE_PARAMS kernel = node_of(function_of(module, 4096), parameters);

	OK(OPTIONAL(cuGraphKernelNodeSetParams_v2)(node, &kernel));
	return instantiate_and_run(graph);
}

static CUresult graph_of_child(CUmodule module)
{
	CUgraphNode node = NULL;
	CUgraph graph = NULL, child = graph_of(function_of(module, 4096), &node);

	OK(cuGraphCreate(&graph, 0));
	OK(OPTIONAL(cuGraphAddChildGraphNode)(&node, graph, NULL, 0, child));
	OK(cuGraphDestroy(child));
	return instantiate_and_run(graph);
}

static CUresult graph_of_changed_any(CUmodule module)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUgraph graph = graph_of(function_of(module, 0), &node);
	CUresult result;

	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	result = change_any(executable, node, function_of(module, 4096));
	OK(cuGraphLaunch(executable, NULL));
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	return result;
}

static CUresult graph_of_changed_child(CUmodule module)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL, inner = NULL;
	CUgraph graph = NULL, small = graph_of(function_of(module, 0), &inner);
	CUgraph large = graph_of(function_of(module, 4096), &inner);
	CUresult result;

	OK(cuGraphCreate(&graph, 0));
	OK(OPTIONAL(cuGraphAddChildGraphNode)(&node, graph, NULL, 0, small));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	result = OPTIONAL(cuGraphExecChildGraphNodeSetParams)(executable, node, large);
	OK(cuGraphLaunch(executable, NULL));
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(cuGraphDestroy(small));
	OK(cuGraphDestroy(large));
	return result;
}

static CUresult graph_of_update(CUmodule module)
{
	CUgraphExecUpdateResultInfo info = {0};
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUgraph small = graph_of(function_of(module, 0), &node);
	CUgraph large = graph_of(function_of(module, 4096), &node);
	CUresult result;

	OK(cuGraphInstantiateWithFlags(&executable, small, 0));
	result = OPTIONAL(cuGraphExecUpdate_v2)(executable, large, &info);
	if (result == CUDA_SUCCESS)
		result = cuGraphLaunch(executable, NULL);
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(small));
	OK(cuGraphDestroy(large));
	return result;
}

static const struct {
	const char *name; /* of what a driver may lack */
	CUresult (*run)(CUmodule module);
} graph_ways[] = {{"cuLibraryGetKernel", graph_of_handle},
                  {"cuGraphKernelNodeSetParams_v2", graph_of_changed_node},
                  {"cuGraphAddChildGraphNode", graph_of_child},
                  {"cuGraphExecNodeSetParams", graph_of_changed_any},
                  {"cuGraphExecChildGraphNodeSetParams", graph_of_changed_child},
                  {"cuGraphExecUpdate_v2", graph_of_update}};

#define GRAPH_WAYS (sizeof(graph_ways) / sizeof(*graph_ways))

static void graph_ways_within(void)
{
	CUmodule module;

	begin();
	if (no_kernel_nodes())
		return;
	module = load(module_text(0, frames));
	for (size_t i = 0; i < GRAPH_WAYS; i++) {
		if (!driver_symbol(graph_ways[i].name))
			continue;
		expect(graph_ways[i].name, graph_ways[i].run(module), CUDA_SUCCESS);
		takes(graph_ways[i].name, stacks(4096));
		no_stacks();
		saw("%s", graph_ways[i].name);
	}
}

static void graph_ways_beyond(void)
{
	CUdeviceptr pointer;
	CUmodule module;

	begin();
	if (no_kernel_nodes())
		return;
	module = load(module_text(0, frames));
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	for (size_t i = 0; i < GRAPH_WAYS; i++) {
		if (!driver_symbol(graph_ways[i].name))
			continue;
		OUT_OF_MEMORY(graph_ways[i].name, graph_ways[i].run(module));
		takes("refused before it", 0);
		saw("%s", graph_ways[i].name);
	}
	give_room(pointer);
	takes("at the end", 0);
}

/* --- limits --- */

static void stack_within(void)
{
	begin();
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	takes("4 KiB", stacks(4096));
	OK(launch(function_of(load(module_text(0, frames)), 2048)));
	takes("a launch within it", stacks(4096));
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
	takes("2 KiB", stacks(2048));
	no_stacks();
	saw("a stack of 4 KiB charges %lld MiB, of 2 KiB %lld", stacks(4096) / (long long)MIB,
	    stacks(2048) / (long long)MIB);
}

static void stack_beyond(void)
{
	CUdeviceptr pointer;

	begin();
	OUT_OF_MEMORY("64 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536));
	takes("refused before it", 0);
	pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	OUT_OF_MEMORY("4 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	takes("and this", 0);
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu", stack_limit());
	give_room(pointer);
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	no_stacks();
	saw("a limit that does not fit is refused, and stays what it was");
}

const struct row stack_rows[] = {
    {"code-frames",
     "cuModuleGetFunction cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx "
     "cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz "
     "cuLaunch cuLaunchGrid cuLaunchGridAsync cuCtxSetLimit",
     frames_within, frames_beyond},
    {"code-listed", "cuModuleEnumerateFunctions cuLibraryEnumerateKernels cuLaunchKernel",
     listed_within, listed_beyond},
    {"code-devices", "cuLaunchCooperativeKernelMultiDevice", many_devices_within,
     many_devices_beyond},
    {"code-second", "cuLaunchKernel cuCtxCreate_v2 cuCtxDestroy_v2", second_within, second_beyond},
    {"code-elsewhere",
     "cuLibraryGetKernel cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx "
     "cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz "
     "cuCtxDestroy_v2",
     streams_within, streams_beyond},
    {"code-graph-contexts", "cuGraphInstantiateWithFlags cuGraphExecUpdate_v2 cuCtxDestroy_v2",
     graph_contexts_within, graph_contexts_beyond},
    {"code-graph",
     "cuGraphInstantiateWithFlags cuGraphExecKernelNodeSetParams_v2 cuGraphLaunch cuLaunchKernel",
     graphs_within, graphs_beyond},
    {"code-graph-ways",
     "cuLibraryGetKernel cuGraphInstantiateWithFlags cuGraphExecNodeSetParams "
     "cuGraphExecChildGraphNodeSetParams cuGraphExecUpdate_v2 cuGraphLaunch",
     graph_ways_within, graph_ways_beyond},
    {"code-stack", "cuCtxSetLimit", stack_within, stack_beyond},
    {0}};
