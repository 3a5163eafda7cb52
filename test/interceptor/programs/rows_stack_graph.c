/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of kernels in graphs: allocated when a graph is instantiated, or launched. */
#include "rows_stack.h"

static CUDA_KERNEL_NODE_PARAMS node_of(CUfunction function, void **parameters)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = function, ONE_THREAD, .kernelParams = parameters};
}

static bool no_kernel_nodes(void)
{
	if (driver_symbol("cuGraphAddKernelNode_v2"))
		return false;
	report("this driver has no cuGraphAddKernelNode_v2");
	return true;
}

static CUgraph graph_of(CUfunction function, CUgraphNode *node)
{
	CUDA_KERNEL_NODE_PARAMS kernel = node_of(function, parameters);
	CUgraph graph = NULL;

	OK(cuGraphCreate(&graph, 0));
	OK(OPTIONAL(cuGraphAddKernelNode_v2)(node, graph, NULL, 0, &kernel));
	return graph;
}

static CUresult change(CUgraphExec executable, CUgraphNode node, CUfunction function)
{
	CUDA_KERNEL_NODE_PARAMS kernel = node_of(function, parameters);

	return OPTIONAL(cuGraphExecKernelNodeSetParams_v2)(executable, node, &kernel);
}

/* The same by the function for nodes of any type, with a structure that ends in zeros. */
static CUresult change_any(CUgraphExec executable, CUgraphNode node, CUfunction function)
{
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
	expect_charge("launched", bytes);
	OK(cuGraphExecDestroy(executable));
}

static void graphs_within(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUstream stream = NULL;
	CUmodule module = load(module_text(0, frames));
	CUgraph graph = graph_of(function_of(module, 2048), &node);

	expect_charge("a node", 0);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	expect_charge("instantiated", stacks(2048));
	if (driver_symbol("cuGraphExecKernelNodeSetParams_v2")) {
		OK(change(executable, node, function_of(module, 4096)));
		expect_charge("another kernel in it", stacks(4096));
		run_and_end(executable, stacks(4096));
	} else {
		run_and_end(executable, stacks(2048));
	}
	OK(cuGraphDestroy(graph));
	shrink_stacks();
	OK(cuStreamCreate(&stream, 1));
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel(function_of(module, 2048), 1, 1, 1, 1, 1, 1, 0, stream, parameters,
	                  NULL));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	expect_charge("captured and instantiated", stacks(2048));
	run_and_end(executable, stacks(2048));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(stream));
	shrink_stacks();
	report("a graph takes %lld MiB for a frame of 2 KiB when it is instantiated",
	       stacks(2048) / (long long)MIB);
}

static void graphs_beyond(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUgraph small;
	CUmodule module = load(module_text(0, frames));
	CUdeviceptr pointer = fill_but((size_t)stacks(4096) - 64 * MIB);
	CUgraph large = graph_of(function_of(module, 4096), &node);

	OUT_OF_MEMORY("to instantiate", cuGraphInstantiateWithFlags(&executable, large, 0));
	expect_charge("refused", 0);
	small = graph_of(function_of(module, 0), &node);
	OK(cuGraphInstantiateWithFlags(&executable, small, 0));
	if (driver_symbol("cuGraphExecKernelNodeSetParams_v2")) {
		OUT_OF_MEMORY("another kernel in it",
		              change(executable, node, function_of(module, 4096)));
		expect_charge("refused", 0);
	}
	run_and_end(executable, 0);
	give_room(pointer);
	OK(cuGraphInstantiateWithFlags(&executable, large, 0));
	expect_charge("granted later", stacks(4096));
	run_and_end(executable, stacks(4096));
	shrink_stacks();
	report("a graph with a frame of 4 KiB is refused with %lld MiB free",
	       stacks(4096) / (long long)MIB - 64);
}

/* A graph's kernels have their stacks in their own contexts, whichever is current. */
static void graph_contexts_within(void)
{
	CUgraphExec executable = NULL;
	CUgraphNode node = NULL;
	CUcontext second = NULL;
	CUgraph graph, small;
	CUmodule other;
	long long cost;
	CUmodule module = load(module_text(0, frames));
	size_t before = left();

	OK(cuCtxCreate_v2(&second, 0, 0));
	cost = (long long)before - (long long)left();
	other = load(module_text(0, frames));
	graph = graph_of(function_of(other, 2048), &node);
	OK(cuCtxSetCurrent(own_context));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	expect_charge("instantiated", cost + stacks(2048));
	still_here();
	run_and_end(executable, cost + stacks(2048));
	small = graph_of(function_of(module, 0), &node);
	OK(cuGraphInstantiateWithFlags(&executable, small, 0));
	if (driver_symbol("cuGraphExecUpdate_v2")) {
		CUgraphExecUpdateResultInfo info = {0};

		OK(cuCtxSetCurrent(second));
		OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
		OK(cuCtxSetCurrent(own_context));
		expect_charge("lowered there", cost);
		/* (The driver may refuse to change a kernel's context in this way.) */
		if (OPTIONAL(cuGraphExecUpdate_v2)(executable, graph, &info) == CUDA_SUCCESS)
			expect_charge("updated", cost + stacks(2048));
	}
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(small));
	OK(cuGraphDestroy(graph));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	expect_charge("its context destroyed", 0);
	report("%lld MiB in the context of a graph's kernel, which is not current",
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
	shrink_stacks();
	report("stacks of the current context do not serve a graph's kernel");
}

/* Other ways to get a frame into a graph that is launched. Each returns the first error of its
 * calls. */
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
	const char *name; /* of a function that the driver may lack */
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
	CUmodule module = load(module_text(0, frames));

	for (size_t i = 0; i < GRAPH_WAYS; i++) {
		if (!driver_symbol(graph_ways[i].name))
			continue;
		expect(graph_ways[i].name, graph_ways[i].run(module), CUDA_SUCCESS);
		expect_charge(graph_ways[i].name, stacks(4096));
		shrink_stacks();
		report("%s", graph_ways[i].name);
	}
}

static void graph_ways_beyond(void)
{
	CUmodule module = load(module_text(0, frames));
	CUdeviceptr pointer = fill_but((size_t)stacks(4096) - 64 * MIB);

	for (size_t i = 0; i < GRAPH_WAYS; i++) {
		if (!driver_symbol(graph_ways[i].name))
			continue;
		OUT_OF_MEMORY(graph_ways[i].name, graph_ways[i].run(module));
		expect_charge("refused", 0);
		report("%s", graph_ways[i].name);
	}
	give_room(pointer);
	expect_charge("at the end", 0);
}

const struct row stack_graph_rows[] = {
    {"code-graph-contexts", "cuGraphInstantiateWithFlags cuGraphExecUpdate_v2 cuCtxDestroy_v2",
     graph_contexts_within, .beyond = graph_contexts_beyond, .lacks = no_kernel_nodes},
    {"code-graph",
     "cuGraphInstantiateWithFlags cuGraphExecKernelNodeSetParams_v2 cuGraphLaunch cuLaunchKernel",
     graphs_within, .beyond = graphs_beyond, .lacks = no_kernel_nodes},
    {"code-graph-ways",
     "cuLibraryGetKernel cuGraphInstantiateWithFlags cuGraphExecNodeSetParams "
     "cuGraphExecChildGraphNodeSetParams cuGraphExecUpdate_v2 cuGraphLaunch",
     graph_ways_within, .beyond = graph_ways_beyond, .lacks = no_kernel_nodes},
    {0}};
