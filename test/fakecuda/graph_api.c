/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as objects: their nodes, with one function per type and one for all. */
#include "graph.h"
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* Leaves the lock held only on success. */
static CUresult enter_graph(CUgraph graph, const void *out)
{
	CUresult result = driver_enter();

	if (result == CUDA_SUCCESS && (!graph || !out))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return result;
}

CUDA_API CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	DRIVER_ENTER();
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = graph_create();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuGraphDestroy(CUgraph graph)
{
	DRIVER_ENTER_BY(enter_graph(graph, graph));
	graph_destroy(graph);
	return CUDA_SUCCESS;
}

static CUresult add_plain(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                          int type)
{
	DRIVER_ENTER_BY(enter_graph(graph, out));
	return graph_add(graph, type, after, count, out);
}

CUDA_API CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                      size_t count)
{
	return add_plain(out, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY);
}

CUDA_API CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                       size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
                                       CUcontext context)
{
	(void)context;
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	return add_plain(out, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET);
}

CUresult graph_kernel(const CUDA_KERNEL_NODE_PARAMS *params, bool second_form, CUfunction *out)
{
	CUfunction handle;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	handle = params->func;
	if (!handle && second_form)
		handle = (CUfunction)(void *)params->kern;
	if (!handle || !params->gridDimX || !params->gridDimY || !params->gridDimZ ||
	    !params->blockDimX || !params->blockDimY || !params->blockDimZ)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle->what == LAUNCHABLE_KERNEL) {
		CUcontext context = context_current();

		if (second_form && params->ctx)
			context = params->ctx;
		return context ? kernel_function(context, handle, out) : CUDA_ERROR_INVALID_CONTEXT;
	}
	*out = handle;
	return CUDA_SUCCESS;
}

static void set_function(CUgraphNode node, CUfunction function,
                         const CUDA_KERNEL_NODE_PARAMS *params, bool second_form)
{
	node->function = function;
	node->kernel = (CUDA_KERNEL_NODE_PARAMS){0};
	memcpy(&node->kernel, params,
	       second_form ? sizeof(*params) : offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	node->kernel.func = function;
	node->kernel.ctx = kernel_context(function);
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS *params, bool second_form)
{
	CUfunction function;

	DRIVER_ENTER_BY(enter_graph(graph, out));
	TRY(graph_kernel(params, second_form, &function));
	TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL, after, count, out));
	set_function(*out, function, params, second_form);
	return CUDA_SUCCESS;
}

/* The second form's parameters extend the first one's. */
CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                          size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	return add_kernel(out, graph, after, count, params, true);
}

static CUresult set_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params,
                           bool second_form)
{
	CUfunction function;

	DRIVER_ENTER();
	if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_kernel(params, second_form, &function));
	set_function(node, function, params, second_form);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS *params)
{
	return set_kernel(node, params, true);
}

CUDA_API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                         size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	DRIVER_ENTER_BY(enter_graph(graph, out));
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	return graph_add_alloc(graph, after, count, params, out);
}

CUDA_API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                        size_t count, CUdeviceptr pointer)
{
	DRIVER_ENTER_BY(enter_graph(graph, out));
	return graph_add_free(graph, after, count, pointer, out);
}

static CUgraphNode copy_of(const struct CUgraphNode_st *node, CUgraph to)
{
	CUgraphNode copy = to->first;

	for (CUgraphNode at = node->graph->first; at != node; at = at->next)
		copy = copy->next;
	return copy;
}

static CUresult clone_graph(CUgraph graph, CUgraph *out);

/* The predecessors of `node` exist already: they were added before it. */
static CUresult clone_node(const struct CUgraphNode_st *node, CUgraph to)
{
	CUgraphNode *after = calloc(node->after_count + 1, sizeof(CUgraphNode));
	CUgraphNode copy;
	CUresult result;

	if (!after)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < node->after_count; i++)
		after[i] = copy_of(node->after[i], to);
	result = graph_add(to, node->type, after, node->after_count, &copy);
	free(after);
	if (result != CUDA_SUCCESS)
		return result;
	copy->function = node->function;
	copy->kernel = node->kernel;
	if (node->child)
		return clone_graph(node->child, &copy->child);
	return CUDA_SUCCESS;
}

static CUresult clone_graph(CUgraph graph, CUgraph *out)
{
	CUgraph copy;
	CUresult result = CUDA_SUCCESS;

	if (graph->allocates)
		return CUDA_ERROR_NOT_SUPPORTED;
	copy = graph_create();
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (CUgraphNode node = graph->first; node && result == CUDA_SUCCESS; node = node->next)
		result = clone_node(node, copy);
	if (result != CUDA_SUCCESS) {
		graph_destroy(copy);
		return result;
	}
	*out = copy;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphClone(CUgraph *out, CUgraph graph)
{
	DRIVER_ENTER_BY(enter_graph(graph, out));
	return clone_graph(graph, out);
}

CUDA_API CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph,
                                           const CUgraphNode *after, size_t count, CUgraph child)
{
	CUgraph copy;
	CUresult result;

	DRIVER_ENTER_BY(enter_graph(graph, out));
	TRY(child ? clone_graph(child, &copy) : CUDA_ERROR_INVALID_VALUE);
	result = graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, after, count, out);
	if (result == CUDA_SUCCESS)
		(*out)->child = copy;
	else
		graph_destroy(copy);
	return result;
}

CUDA_API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                 size_t count, CUgraphNodeParams *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return cuGraphAddKernelNode_v2(out, graph, after, count, &params->as.kernel);
	case CU_GRAPH_NODE_TYPE_MEMSET:
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return add_plain(out, graph, after, count, params->type);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return cuGraphAddChildGraphNode(out, graph, after, count, params->as.graph);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return cuGraphAddMemAllocNode(out, graph, after, count, &params->as.alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return cuGraphAddMemFreeNode(out, graph, after, count, params->as.free);
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* 12.3: with data of the edges, besides the predecessors */
CUDA_API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
                                    const void *edges, size_t count, CUgraphNodeParams *params)
{
	(void)edges;
	return cuGraphAddNode(out, graph, after, count, params);
}

/* Up to *count nodes; without an array, their number. */
CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *out, size_t *count)
{
	size_t found = 0;

	DRIVER_ENTER_BY(enter_graph(graph, count));
	if (!out) {
		*count = graph->count;
		return CUDA_SUCCESS;
	}
	for (CUgraphNode node = graph->first; node && found < *count; node = node->next)
		out[found++] = node;
	for (size_t i = found; i < *count; i++)
		out[i] = NULL;
	*count = found;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
	DRIVER_ENTER();
	if (!node || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success: the node exists and has the type. */
static CUresult enter_node(CUgraphNode node, int type, const void *out)
{
	CUresult result = driver_enter();

	if (result == CUDA_SUCCESS && (!node || !out || node->type != type))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return result;
}

CUDA_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
	DRIVER_ENTER_BY(enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL, out));
	*out = node->kernel;
	return CUDA_SUCCESS;
}

/* The first form supports functions only. */
CUDA_API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *out)
{
	DRIVER_ENTER_BY(enter_node(node, CU_GRAPH_NODE_TYPE_KERNEL, out));
	memcpy(out, &node->kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
	DRIVER_ENTER_BY(enter_node(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out));
	*out = node->params;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *out)
{
	DRIVER_ENTER_BY(enter_node(node, CU_GRAPH_NODE_TYPE_MEM_FREE, out));
	*out = node->params.dptr;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out)
{
	DRIVER_ENTER_BY(enter_node(node, CU_GRAPH_NODE_TYPE_GRAPH, out));
	*out = node->child;
	return CUDA_SUCCESS;
}
