/* SPDX-License-Identifier: Apache-2.0 */
/* Local memory: a kernel's frame times all threads that the card can run at a time. When it is
 * taken, how long it stays, and the effect of the stack limit. Up to 3960 MiB are taken. */
#include "code.h"

static const size_t frames[] = {1024, 4096, 16384};

static CUmodule load_frames(void)
{
	static char text[8192] = PTX_HEADER PTX_EMPTY;
	CUmodule module;

	for (size_t i = 0; i < COUNT(frames) && !strstr(text, "frame16384"); i++)
		add_frame(text, sizeof(text), frames[i]);
	MUST(cuModuleLoadData(&module, text));
	return module;
}

static CUfunction function_of(CUmodule module, const char *name)
{
	CUfunction function;

	MUST(cuModuleGetFunction(&function, module, name));
	return function;
}

static void say_limit(const char *key)
{
	size_t limit = 0;

	MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	printf("%s: limit %zu, held %lld, listed %lld\n", key, limit, held() - before,
	       listed(getpid()) - before_listed);
}

static void set(const char *key, size_t limit)
{
	MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, limit));
	say_limit(key);
}

/* By one thread and by 1024: the number of threads does not matter. */
static void launches(CUmodule module)
{
	for (size_t i = 0; i < COUNT(frames); i++) {
		char name[32];
		CUfunction function;
		int frame = -1;

		sprintf(name, "frame%zu", frames[i]);
		function = function_of(module, name);
		say_limit(keyed("%s.looked_up", name));
		MUST(cuFuncGetAttribute(&frame, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
		printf("%s.attribute: %d\n", name, frame);
		MUST(launch(function));
		say_limit(keyed("%s.launched", name));
		MUST(launch_block(function, 1024));
		say_limit(keyed("%s.block_1024", name));
	}
}

/* A graph's kernel is replaced by one with a larger frame. */
static void graphs(CUmodule module)
{
	CUfunction function = function_of(module, "frame4096");
	uint64_t x = 0;
	void *parameters[] = {&x};
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;
	CUDA_KERNEL_NODE_PARAMS params = kernel_node(function, parameters);

	MUST(cuGraphCreate(&graph, 0));
	MUST(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
	say_limit("graph.node");
	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	say_limit("graph.instantiated");
	MUST(cuGraphUpload(exec, NULL));
	say_limit("graph.uploaded");
	MUST(cuGraphLaunch(exec, NULL));
	MUST(cuCtxSynchronize());
	say_limit("graph.launched");
	params.func = function_of(module, "frame16384");
	say_result("graph.set_params", cuGraphExecKernelNodeSetParams_v2(exec, node, &params));
	say_limit("graph.set");
	MUST(cuGraphLaunch(exec, NULL));
	MUST(cuCtxSynchronize());
	say_limit("graph.set.launched");
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(graph));
	say_limit("graph.destroyed");
}

static void second_context(CUcontext first)
{
	CUcontext second;
	CUmodule module;
	long long without;

	set("second.first_1024", 1024);
	without = held();
	MUST(cuCtxCreate_v2(&second, 0, 0));
	mark();
	module = load_frames();
	MUST(launch(function_of(module, "frame4096")));
	say_limit("second.launched");
	MUST(cuCtxSetCurrent(first));
	say_limit("second.first");
	MUST(cuCtxDestroy_v2(second));
	MUST(cuCtxSetCurrent(first));
	printf("second.destroyed: held %lld\n", held() - without);
}

static void say_both(const char *key, CUcontext first, CUcontext second)
{
	size_t limit = 0, other = 0;

	MUST(cuCtxSetCurrent(second));
	MUST(cuCtxGetLimit(&other, CU_LIMIT_STACK_SIZE));
	MUST(cuCtxSetCurrent(first));
	MUST(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	printf("%s: limits %zu and %zu, held %lld\n", key, limit, other, held() - before);
}

static void lower(CUcontext first, CUcontext second)
{
	MUST(cuCtxSetCurrent(second));
	MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
	MUST(cuCtxSetCurrent(first));
	MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
}

/* The context of a stack that is taken while another context is current. */
static void elsewhere(CUcontext first)
{
	static char text[4096] = PTX_HEADER;
	uint64_t x = 0;
	void *parameters[] = {&x};
	CUDA_KERNEL_NODE_PARAMS params;
	CUcontext second;
	CUgraphExec exec;
	CUgraphNode node;
	CUlibrary library;
	CUkernel kernel;
	CUmodule module;
	CUstream stream;
	CUgraph graph;

	MUST(cuCtxCreate_v2(&second, 0, 0));
	MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	module = load_frames();
	add_frame(text, sizeof(text), 4096);
	MUST(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuLibraryGetKernel(&kernel, library, "frame4096"));
	MUST(cuCtxSetCurrent(first));
	mark();
	say_result("elsewhere.stream", launch_kernel(kernel, stream));
	MUST(cuStreamSynchronize(stream));
	say_both("elsewhere.stream.launched", first, second);
	lower(first, second);

	params = kernel_node(function_of(module, "frame4096"), parameters);
	MUST(cuGraphCreate(&graph, 0));
	MUST(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
	say_result("elsewhere.graph", cuGraphInstantiateWithFlags(&exec, graph, 0));
	say_both("elsewhere.graph.instantiated", first, second);
	MUST(cuGraphLaunch(exec, stream));
	MUST(cuStreamSynchronize(stream));
	say_both("elsewhere.graph.launched", first, second);
	MUST(cuGraphExecDestroy(exec));
	params = (CUDA_KERNEL_NODE_PARAMS){0};
	MUST(cuGraphKernelNodeGetParams_v2(node, &params));
	printf("elsewhere.graph.says: context %d\n", params.ctx == second);
	MUST(cuGraphDestroy(graph));
	MUST(cuCtxDestroy_v2(second));
	MUST(cuCtxSetCurrent(first));
}

int main(void)
{
	CUcontext context = start_with_context();
	CUmodule module;
	int processors = 0, threads = 0;

	MUST(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	MUST(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
	printf("card: %d multiprocessors, %d threads each\n", processors, threads);
	mark();
	module = load_frames();
	say_limit("loaded");
	MUST(launch(function_of(module, "empty")));
	say_limit("empty.launched");
	launches(module);
	MUST(launch(function_of(module, "empty")));
	say_limit("empty.launched_after");
	MUST(cuModuleUnload(module));
	say_limit("unloaded");
	set("set.1024", 1024);

	set("set.16384", 16384);
	module = load_frames();
	MUST(launch(function_of(module, "frame4096")));
	say_limit("set.16384.smaller_launched");
	set("set.4096", 4096);
	MUST(launch(function_of(module, "frame16384")));
	say_limit("set.4096.larger_launched");
	set("set.back", 1024);
	MUST(launch(function_of(module, "frame16384")));
	say_limit("set.back.launched");
	set("set.512", 512);
	set("set.1000", 1000);
	set("set.2000", 2000);
	say_result("set.too_much", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * MiB));
	set("set.back_again", 1024);
	graphs(module);
	second_context(context);
	elsewhere(context);
	return 0;
}
