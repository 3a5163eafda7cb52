/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs. A launch has run when the call returns, as all other work. */
#include "capture.h"
#include "graph.h"
#include "kernel.h"
#include "limit.h"
#include "overhead.h"
#include "stream.h"

#include <stdlib.h>

/* The part of a node that a launch needs. */
struct step {
	CUgraphNode node; /* the program's name for it; it may be gone */
	int type;
	CUfunction function;     /* of a kernel */
	CUdeviceptr pointer;     /* of a free, for another graph's allocation */
	struct graph_slot *keep; /* of an allocation without a free in the graph */
	uint64_t size;           /* of it */
	size_t inside;           /* steps of a child graph, which follow */
};

struct CUgraphExec_st {
	uint64_t flags;
	struct graph_memory *memory; /* NULL: its graph allocates nothing */
	uint64_t partial[MACHINE_MAX_DEVICES];
	CUcontext context; /* that holds the memory of its nodes (overhead.h), or NULL */
	size_t count;
	struct step *steps;
};

static size_t count_steps(CUgraph graph)
{
	size_t count = graph->count;

	for (CUgraphNode node = graph->first; node; node = node->next)
		if (node->child)
			count += count_steps(node->child);
	return count;
}

/* True if this allocation is its slot's last, and stays. */
static bool is_kept(const struct CUgraphNode_st *alloc)
{
	if (!alloc->slot->taken)
		return false;
	for (CUgraphNode node = alloc->next; node; node = node->next)
		if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->slot == alloc->slot)
			return false;
	return true;
}

static struct step *write_steps(CUgraph graph, struct step *step)
{
	for (CUgraphNode node = graph->first; node; node = node->next) {
		*step = (struct step){.node = node, .type = node->type, .function = node->function};
		if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && !node->slot)
			step->pointer = node->params.dptr;
		if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && is_kept(node)) {
			step->keep = node->slot;
			step->size = node->params.bytesize;
		}
		if (node->child)
			step->inside = count_steps(node->child);
		step++;
		if (node->child)
			step = write_steps(node->child, step);
	}
	return step;
}

/*
 * Takes the local memory of all kernels: observed here, and not at a launch. Each context fits its
 * largest frame, or is unchanged.
 */
static CUresult fit_stacks(const struct step *steps, size_t count)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t i = 0; i < count; i++)
		if (steps[i].function)
			kernel_context(steps[i].function)->frame_wanted = 0;
	for (size_t i = 0; i < count; i++) {
		CUfunction function = steps[i].function;

		if (function && kernel_context(function)->frame_wanted < function->frame)
			kernel_context(function)->frame_wanted = function->frame;
	}
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		CUcontext context = steps[i].function ? kernel_context(steps[i].function) : NULL;

		if (context)
			result = limit_fit_stack(context, context->frame_wanted);
	}
	return result;
}

/* After an update the new graph's nodes replace those of the steps. */
static CUresult learn_steps(CUgraphExec exec, CUgraph graph)
{
	size_t count = count_steps(graph);
	struct step *steps = calloc(count + 1, sizeof(*steps));
	CUresult result;

	if (!steps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	write_steps(graph, steps);
	result = fit_stacks(steps, count);
	if (result != CUDA_SUCCESS) {
		free(steps);
		return result;
	}
	for (size_t i = 0; exec->steps && i < count; i++)
		steps[i].node = exec->steps[i].node;
	free(exec->steps);
	exec->steps = steps;
	exec->count = count;
	return CUDA_SUCCESS;
}

/* Takes the nodes' memory, in the context of the first kernel. */
static CUresult hold_nodes(CUgraphExec exec)
{
	CUcontext context = NULL;

	for (size_t i = 0; i < exec->count && !context; i++)
		if (exec->steps[i].function)
			context = kernel_context(exec->steps[i].function);
	if (!context)
		return CUDA_SUCCESS;
	TRY(overhead_add_nodes(context, exec->count));
	exec->context = context;
	return CUDA_SUCCESS;
}

/* Takes all memory of the card that a launch needs and lacks. */
static CUresult upload(CUgraphExec exec)
{
	for (CUdevice i = 0; exec->memory && device_at(i); i++)
		if (!graph_memory_reserve(exec->memory, device_at(i), &exec->partial[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static void destroy(CUgraphExec exec)
{
	if (exec->memory) {
		exec->memory->instantiated = false;
		graph_memory_drop(exec->memory);
	}
	if (exec->context)
		overhead_drop_nodes(exec->context, exec->count);
	free(exec->steps);
	free(exec);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags)
{
	CUgraphExec exec;
	CUresult result;

	if (!out || !graph)
		return CUDA_ERROR_INVALID_VALUE;
	/* Its addresses can be backed by memory once. */
	if (graph->memory && graph->memory->instantiated)
		return CUDA_ERROR_NOT_SUPPORTED;
	exec = calloc(1, sizeof(*exec));
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = learn_steps(exec, graph);
	if (result == CUDA_SUCCESS)
		result = hold_nodes(exec);
	if (result != CUDA_SUCCESS) {
		destroy(exec);
		return result;
	}
	exec->flags = flags;
	exec->memory = graph->memory;
	if (exec->memory) {
		exec->memory->holders++;
		exec->memory->instantiated = true;
	}
	*out = exec;
	return CUDA_SUCCESS;
}

/* An upload needs a stream, which only cuGraphInstantiateWithParams has. */
CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                              unsigned long long flags)
{
	DRIVER_ENTER();
	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		return CUDA_ERROR_INVALID_VALUE;
	return instantiate(out, graph, flags);
}

CUDA_API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node,
                                        char *log, size_t log_size)
{
	if (error_node)
		*error_node = NULL;
	if (log && log_size)
		*log = '\0';
	return cuGraphInstantiateWithFlags(out, graph, 0);
}

CUDA_API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error_node,
                                     char *log, size_t log_size)
{
	return cuGraphInstantiate_v2(out, graph, error_node, log, log_size);
}

CUDA_API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	params->hErrNode_out = NULL;
	result = instantiate(out, graph, params->flags);
	if (result == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
		result = upload(*out);
		if (result != CUDA_SUCCESS)
			destroy(*out);
	}
	params->result_out = result != CUDA_SUCCESS;
	return result;
}

CUDA_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph,
                                                    CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return cuGraphInstantiateWithParams(out, graph, params);
}

/* The stream only sets the order, and all work is done at once. */
CUDA_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	(void)stream;
	DRIVER_ENTER_CONTEXT(context);
	return exec ? upload(exec) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	return cuGraphUpload(exec, stream);
}

/* Frees what an earlier launch left if the graph was made for that; otherwise it is an error. */
static CUresult clear_kept(CUgraphExec exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		struct graph_slot *slot = exec->steps[i].keep;

		if (!slot || !slot->live)
			continue;
		if (!(exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
			return CUDA_ERROR_INVALID_VALUE;
		graph_slot_free(slot);
	}
	return CUDA_SUCCESS;
}

static CUresult run_step(CUcontext context, const struct step *step)
{
	struct range *range;

	if (step->type == CU_GRAPH_NODE_TYPE_KERNEL)
		return kernel_run(context, step->function);
	if (step->keep)
		return graph_slot_keep(step->keep, step->size);
	if (!step->pointer)
		return CUDA_SUCCESS;
	range = ranges_at(&allocations, step->pointer);
	if (!range || range->kind != RANGE_GRAPH || range->start != step->pointer)
		return CUDA_ERROR_INVALID_VALUE;
	graph_memory_free(range);
	return CUDA_SUCCESS;
}

static CUresult launch(CUcontext context, CUgraphExec exec)
{
	CUresult result = clear_kept(exec);

	if (result == CUDA_SUCCESS)
		result = upload(exec);
	for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
		result = run_step(context, &exec->steps[i]);
	return result;
}

static CUresult launch_in(CUgraphExec exec, CUstream stream)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_of(stream))
		return capture_spoil(capture_of(stream));
	return launch(context, exec);
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return launch_in(exec, stream_legacy(stream));
}

CUDA_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return launch_in(exec, stream_per_thread(stream));
}

CUDA_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	DRIVER_ENTER();
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	destroy(exec);
	return CUDA_SUCCESS;
}

/* Compares the graph with that of the executable one: CUgraphExecUpdateResult. */
static int compare(const struct CUgraphExec_st *exec, CUgraph graph)
{
	size_t i = 0;

	if (count_steps(graph) != exec->count)
		return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	/* Another graph's allocations have other addresses. */
	if (graph->memory != exec->memory)
		return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
	for (CUgraphNode node = graph->first; node; node = node->next) {
		if (node->type != exec->steps[i].type)
			return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
		i += node->child ? 1 + count_steps(node->child) : 1;
	}
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUDA_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                       CUgraphExecUpdateResultInfo *info)
{
	DRIVER_ENTER();
	if (!exec || !graph || !info)
		return CUDA_ERROR_INVALID_VALUE;
	*info = (CUgraphExecUpdateResultInfo){.result = compare(exec, graph)};
	if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	return learn_steps(exec, graph);
}

CUDA_API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                                    int *update)
{
	CUgraphExecUpdateResultInfo info = {0};
	CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);

	if (result != CUDA_SUCCESS && result != CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
		return result;
	if (error_node)
		*error_node = NULL;
	if (update)
		*update = info.result;
	return result;
}

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node,
                           const CUDA_KERNEL_NODE_PARAMS *params, bool second_form)
{
	CUfunction function;
	CUresult result;

	DRIVER_ENTER();
	if (!exec || !node)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_kernel(params, second_form, &function));
	for (size_t i = 0; i < exec->count; i++) {
		struct step *step = &exec->steps[i];

		if (step->node != node || step->type != CU_GRAPH_NODE_TYPE_KERNEL)
			continue;
		result = limit_fit_stack(kernel_context(function), function->frame);
		if (result == CUDA_SUCCESS)
			step->function = function;
		return result;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_KERNEL_NODE_PARAMS *params)
{
	return set_kernel(exec, node, params, true);
}

CUDA_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_KERNEL_NODE_PARAMS *params)
{
	return set_kernel(exec, node, params, false);
}

CUDA_API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                           CUgraphNodeParams *params)
{
	if (!params || params->type != CU_GRAPH_NODE_TYPE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	return set_kernel(exec, node, &params->as.kernel, true);
}

/* The new child's nodes replace the old one's, as in an update. */
static CUresult set_child(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	struct step *at = exec->steps, *end = at + exec->count, *steps;
	size_t count = count_steps(child);
	CUresult result;

	while (at < end && (at->node != node || at->type != CU_GRAPH_NODE_TYPE_GRAPH))
		at++;
	if (at == end || at->inside != count)
		return CUDA_ERROR_INVALID_VALUE;
	steps = calloc(count + 1, sizeof(*steps));
	if (!steps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	write_steps(child, steps);
	result = fit_stacks(steps, count);
	for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
		steps[i].node = at[1 + i].node;
		at[1 + i] = steps[i];
	}
	free(steps);
	return result;
}

CUDA_API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                     CUgraph child)
{
	DRIVER_ENTER();
	return exec && node && child ? set_child(exec, node, child) : CUDA_ERROR_INVALID_VALUE;
}
