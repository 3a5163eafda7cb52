/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs that allocate. Recording or instantiating such a graph takes no memory; uploading or
 * launching it does, from the device's memory of graphs (pool.h), and what it took stays there
 * until that is trimmed (driver observation, H100, 580.159.04). Graphs that run one after another
 * use the same memory, so what one will make it grow by is known only at most: each address that it
 * allocates, in whole steps.
 *
 * A graph without allocations costs a look at one word per launch.
 *
 * What making a graph executable takes by itself is the stacks of its kernels (stack.h), and some 2
 * KiB for each node of a large one, which stay when it is destroyed (driver observation).
 */
#include "function.h"
#include "grant.h"
#include "graph.h"
#include "overhead.h"
#include "pool.h"
#include "stack.h"
#include "state.h"
#include "table.h"

/* Graphs of fewer nodes take nothing by themselves that could be seen. */
#define MANY_NODES 4096

/*
 * A graph that was uploaded or launched, and launched again in the same stream with no memory of
 * graphs let go of meanwhile, takes none.
 */
static bool is_resident(const struct graph_use *use, CUstream stream, const struct pool *pool)
{
	return use->launched && use->stream == stream &&
	       use->shrunk == __atomic_load_n(&pool->shrunk, __ATOMIC_RELAXED);
}

/* A call that may make the device's memory of graphs grow. */
struct graph_launch {
	CUgraphExec graph;
	CUstream stream;
	CUresult (*call)(CUgraphExec graph, CUstream stream);
	CUresult (*upload)(CUgraphExec graph, CUstream stream);
};

/*
 * The most that it may take does not fit. It may take less, if it can use what other graphs have
 * taken: that shows when it is uploaded, which takes the memory and runs nothing. So for that
 * instant the card, not the ledger, may hold more; what does not fit then is trimmed at once.
 */
static CUresult upload_first(struct pool *pool, const struct graph_launch *l)
{
	CUresult result = l->upload(l->graph, l->stream);
	uint64_t over;

	lock_take(&pool->lock);
	over = pool_look(pool);
	lock_give(&pool->lock);
	if (!over)
		return result;
	if (grant(pool->ordinal, over, KIND_MEMORY, LEDGER_CALL_GRAPH) != GRANTED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	lock_take(&pool->lock);
	pool_add_charge(pool, over);
	lock_give(&pool->lock);
	return result;
}

/* Charge the most that the launch may take, or find that it takes less. */
static CUresult prepare(struct pool *pool, const struct graph_launch *l, uint64_t most,
                        uint64_t *charged)
{
	if (grant_if_free(pool->ordinal, most, KIND_MEMORY) != GRANTED) {
		if (l->upload && __atomic_load_n(&pool->reserved, __ATOMIC_RELAXED))
			return upload_first(pool, l);
		if (grant(pool->ordinal, most, KIND_MEMORY, LEDGER_CALL_GRAPH) != GRANTED)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*charged = most;
	lock_take(&pool->lock);
	pool->pending += most;
	pool_add_charge(pool, most);
	lock_give(&pool->lock);
	return CUDA_SUCCESS;
}

static __attribute__((noinline)) CUresult launch(const struct graph_launch *l)
{
	struct process *process = process_get();
	struct pool *pools[GRAPH_PLACES];
	struct graph_use uses[GRAPH_PLACES];
	uint64_t charged[GRAPH_PLACES] = {0};
	bool grows[GRAPH_PLACES];
	unsigned count = 0;
	CUresult result = CUDA_SUCCESS;

	while (count < GRAPH_PLACES && graph_use(l->graph, count, &uses[count])) {
		pools[count] = pool_of_graphs(process, uses[count].ordinal);
		if (!pools[count] || !process_ready(uses[count].ordinal))
			return CUDA_ERROR_OUT_OF_MEMORY;
		count++;
	}
	/* One launch at a time may take memory, or each would use what another was granted. In the
	 * order of ordinals, as graph_learn() sorts. */
	for (unsigned i = 0; i < count; i++) {
		grows[i] = !is_resident(&uses[i], l->stream, pools[i]);
		if (grows[i])
			lock_take(&pools[i]->growing);
	}
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (grows[i] && uses[i].bytes)
			result = prepare(pools[i], l, uses[i].bytes, &charged[i]);
	}
	if (result == CUDA_SUCCESS)
		result = l->call(l->graph, l->stream);
	for (unsigned i = 0; i < count; i++) {
		struct pool *pool = pools[i];

		if (charged[i] || result == CUDA_ERROR_OUT_OF_MEMORY ||
		    pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) !=
		        __atomic_load_n(&pool->reserved, __ATOMIC_RELAXED)) {
			lock_take(&pool->lock);
			/* A launch that fails for want of memory leaves reserved what it got so far
			 * (driver observation). */
			if (result == CUDA_ERROR_OUT_OF_MEMORY)
				pool_trim(pool, 0);
			pool->pending -= charged[i];
			if (pool_look(pool) && grows[i])
				pool_charge_anyway(pool); /* it runs */
			lock_give(&pool->lock);
		}
		if (result == CUDA_SUCCESS && grows[i]) {
			uses[i].launched = true;
			uses[i].stream = l->stream;
			uses[i].shrunk = __atomic_load_n(&pool->shrunk, __ATOMIC_RELAXED);
			graph_used(l->graph, i, &uses[i]);
		}
		if (grows[i])
			lock_give(&pool->growing);
	}
	return result;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	if (__builtin_expect(!graph_maybe(graph), 1))
		return DRIVER(cuGraphLaunch)(graph, stream);
	return launch(
	    &(struct graph_launch){graph, stream, DRIVER(cuGraphLaunch),
	                           DRIVER_HAS(cuGraphUpload) ? DRIVER(cuGraphUpload) : NULL});
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	if (__builtin_expect(!graph_maybe(graph), 1))
		return DRIVER(cuGraphLaunch_ptsz)(graph, stream);
	return launch(&(struct graph_launch){
	    graph, stream, DRIVER(cuGraphLaunch_ptsz),
	    DRIVER_HAS(cuGraphUpload_ptsz) ? DRIVER(cuGraphUpload_ptsz) : NULL});
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream)
{
	if (!graph_maybe(graph))
		return DRIVER(cuGraphUpload)(graph, stream);
	return launch(
	    &(struct graph_launch){graph, stream, DRIVER(cuGraphUpload), DRIVER(cuGraphUpload)});
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream)
{
	if (!graph_maybe(graph))
		return DRIVER(cuGraphUpload_ptsz)(graph, stream);
	return launch(&(struct graph_launch){graph, stream, DRIVER(cuGraphUpload_ptsz),
	                                     DRIVER(cuGraphUpload_ptsz)});
}

/* --- making them executable ------------------------------------------------------------------- */

/* Around a call that may raise the stacks of a graph's kernels, in each of their contexts. False if
 * they do not fit; then the call is not made. */

static CUcontext context_of(const struct graph_needs *needs, size_t i)
{
	return (CUcontext)(uintptr_t)needs->stacks[i].context;
}

static void stacks_end(struct raise raises[GRAPH_CONTEXTS], const struct graph_needs *needs)
{
	for (size_t i = 0; i < needs->stack_count; i++) {
		bool pushed = context_push(context_of(needs, i));

		stack_end(&raises[i]);
		context_pop(pushed);
	}
}

static bool stacks_begin(struct raise raises[GRAPH_CONTEXTS], const struct graph_needs *needs)
{
	bool fits = true;

	for (size_t i = 0; i < needs->stack_count; i++) {
		bool pushed = context_push(context_of(needs, i));

		raises[i] = (struct raise){0};
		fits = fits && stack_begin(&raises[i], needs->stacks[i].frame);
		context_pop(pushed);
	}
	if (!fits)
		stacks_end(raises, needs);
	return fits;
}

/* A call that makes a graph executable, or makes of an executable one another. */
struct making {
	struct graph_needs needs;
	struct raise raises[GRAPH_CONTEXTS];
	struct watch watch;
};

/* False if its kernels' stacks do not fit; then the call is not made. */
static bool making_begin(struct making *making, CUgraph source)
{
	graph_look(source, &making->needs);
	making->watch = (struct watch){.ordinal = -1};
	if (!stacks_begin(making->raises, &making->needs)) {
		graph_needs_end(&making->needs);
		return false;
	}
	if (making->needs.nodes >= MANY_NODES)
		making->watch = watch_begin();
	return true;
}

static CUresult making_end(struct making *making, CUresult result, CUgraphExec graph)
{
	uint64_t bytes;

	stacks_end(making->raises, &making->needs);
	/* It stays when the graph is destroyed, so there is nothing to undo. */
	if (!watch_end(&making->watch, LEDGER_CALL_GRAPH, &bytes))
		overhead_settle(making->watch.ordinal);
	if (result == CUDA_SUCCESS)
		graph_learn(graph, &making->needs);
	graph_needs_end(&making->needs);
	return result;
}

CUresult cuGraphInstantiate(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                            size_t bytes)
{
	struct making making;
	CUresult result;

	if (!making_begin(&making, source))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuGraphInstantiate)(graph, source, error, log, bytes);
	return making_end(&making, result, result ? NULL : *graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                               size_t bytes)
{
	struct making making;
	CUresult result;

	if (!making_begin(&making, source))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuGraphInstantiate_v2)(graph, source, error, log, bytes);
	return making_end(&making, result, result ? NULL : *graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *graph, CUgraph source, unsigned long long flags)
{
	struct making making;
	CUresult result;

	if (!making_begin(&making, source))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuGraphInstantiateWithFlags)(graph, source, flags);
	return making_end(&making, result, result ? NULL : *graph);
}

/* The one instantiation that may upload. The flag is taken from it, so that the upload is one that
 * we see. */
typedef CUresult (*instantiate_function)(CUgraphExec *graph, CUgraph source,
                                         CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);

static CUresult instantiate(instantiate_function call,
                            CUresult (*upload)(CUgraphExec graph, CUstream stream),
                            CUgraphExec *graph, CUgraph source,
                            CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	bool uploads = parameters && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
	struct making making;
	CUresult result;

	if (!making_begin(&making, source))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (uploads)
		parameters->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	result = call(graph, source, parameters);
	if (uploads)
		parameters->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	result = making_end(&making, result, result ? NULL : *graph);
	if (result != CUDA_SUCCESS || !uploads)
		return result;
	result = upload(*graph, parameters->hUploadStream);
	if (result != CUDA_SUCCESS) {
		(void)cuGraphExecDestroy(*graph);
		*graph = NULL;
	}
	return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *graph, CUgraph source,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(DRIVER(cuGraphInstantiateWithParams), cuGraphUpload, graph, source,
	                   parameters);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *graph, CUgraph source,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiate(DRIVER(cuGraphInstantiateWithParams_ptsz), cuGraphUpload_ptsz, graph,
	                   source, parameters);
}

/* Its memory stays reserved until it is trimmed. */
CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	/* Before the call: the handle may be another graph's as soon as it is let go. */
	if (graph_maybe(graph))
		graph_forget(graph);
	return DRIVER(cuGraphExecDestroy)(graph);
}

/* Other kernels in the place of those that it has. What it allocates cannot be changed so. */

#define WITH_STACKS(needs, call)                                                                   \
	do {                                                                                       \
		struct raise raises[GRAPH_CONTEXTS];                                               \
		CUresult result;                                                                   \
                                                                                                   \
		if (!(needs)->stack_count)                                                         \
			return call;                                                               \
		if (!stacks_begin(raises, needs))                                                  \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = call;                                                                     \
		stacks_end(raises, needs);                                                         \
		return result;                                                                     \
	} while (0)

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct graph_needs needs = {0};

	if (parameters)
		graph_look_at_kernel(parameters, false, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecKernelNodeSetParams)(graph, node, parameters));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	struct graph_needs needs = {0};

	if (parameters)
		graph_look_at_kernel(parameters, true, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecKernelNodeSetParams_v2)(graph, node, parameters));
}

CUresult cuGraphExecNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                  const struct CUgraphNodeParams_st *parameters)
{
	struct graph_needs needs = {0};

	if (parameters && parameters->type == CU_GRAPH_NODE_TYPE_KERNEL)
		graph_look_at_kernel(&parameters->kernel, true, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecNodeSetParams)(graph, node, parameters));
}

/* What the kernels of another graph need; their allocations do not matter. */
static void look_at_stacks(CUgraph source, struct graph_needs *needs)
{
	if (!function_any_large())
		return;
	graph_look(source, needs);
	graph_needs_end(needs);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec graph, CUgraphNode node, CUgraph child)
{
	struct graph_needs needs = {0};

	look_at_stacks(child, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecChildGraphNodeSetParams)(graph, node, child));
}

CUresult cuGraphExecUpdate(CUgraphExec graph, CUgraph source, CUgraphNode *error, int *status)
{
	struct graph_needs needs = {0};

	look_at_stacks(source, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecUpdate)(graph, source, error, status));
}

CUresult cuGraphExecUpdate_v2(CUgraphExec graph, CUgraph source, CUgraphExecUpdateResultInfo *info)
{
	struct graph_needs needs = {0};

	look_at_stacks(source, &needs);
	WITH_STACKS(&needs, DRIVER(cuGraphExecUpdate_v2)(graph, source, info));
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct process *process = process_get();
	CUresult result = DRIVER(cuDeviceGraphMemTrim)(device);
	struct pool *pool = pool_of_graphs_known(process, device);

	if (pool)
		pool_shrunk(pool);
	return result;
}
