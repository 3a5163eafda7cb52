/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs that allocate. Recording or instantiating such a graph takes no memory. Uploading or
 * launching it takes some of the device's graph memory (pool.h), which stays reserved until a trim
 * (driver observation, H100, 580.159.04). Graphs that run one after the other share it, so only the
 * maximum growth is known: each address that a graph allocates, in whole steps.
 *
 * For a graph without allocations a launch reads one word more.
 *
 * Making a graph executable takes the stacks of its kernels (stack.h), and some 2 KiB per node of a
 * large graph, which stay when it is destroyed (driver observation).
 */
#include "function.h"
#include "grant.h"
#include "graph.h"
#include "overhead.h"
#include "pool.h"
#include "stack.h"
#include "state.h"
#include "table.h"

/* Smaller graphs take nothing measurable for their nodes. */
#define MANY_NODES 4096

/* A graph takes no memory when launched again in the same stream, unless graph memory was released
 * in between. */
static bool is_resident(const struct graph_use *use, CUstream stream, const struct pool *pool)
{
	return use->launched && use->stream == stream &&
	       use->shrunk == __atomic_load_n(&pool->shrunk, __ATOMIC_RELAXED);
}

/* A call that may grow the device's graph memory. */
struct graph_launch {
	CUgraphExec graph;
	CUstream stream;
	CUresult (*call)(CUgraphExec graph, CUstream stream);
	CUresult (*upload)(CUgraphExec graph, CUstream stream);
};

/* The maximum does not fit, but the graph may reuse memory of others. An upload shows how much, and
 * runs nothing. For that instant the card may hold more than the ledger allows; what does not fit
 * is trimmed at once. */
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
	LOCKED(&pool->lock);
	pool->pending += most;
	pool_add_charge(pool, most);
	return CUDA_SUCCESS;
}

static __attribute__((noinline)) CUresult launch(const struct graph_launch *l)
{
	struct pool *pools[GRAPH_PLACES];
	struct graph_use uses[GRAPH_PLACES];
	uint64_t charged[GRAPH_PLACES] = {0};
	bool grows[GRAPH_PLACES];
	unsigned count = 0;
	CUresult result = CUDA_SUCCESS;

	while (count < GRAPH_PLACES && graph_use(l->graph, count, &uses[count])) {
		pools[count] = pool_of_graphs(uses[count].ordinal);
		if (!pools[count] || process_device_attached(uses[count].ordinal) < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		count++;
	}
	/* Serialise launches that may take memory: one could use what another was granted. Lock in
	 * the order of ordinals, in which graph_learn() sorts. */
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
			/* A launch that fails for lack of memory leaves reserved what it got so far
			 * (driver observation). */
			if (result == CUDA_ERROR_OUT_OF_MEMORY)
				pool_trim(pool, 0);
			pool->pending -= charged[i];
			if (pool_look(pool) && grows[i])
				pool_charge_anyway(pool); /* it runs already */
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

/* A launch, an upload, and their twins for the thread's own default stream. */
#define LAUNCHES(suffix)                                                                           \
	CUresult cuGraphLaunch##suffix(CUgraphExec graph, CUstream stream)                         \
	{                                                                                          \
		if (__builtin_expect(!graph_maybe(graph), 1))                                      \
			return DRIVER(cuGraphLaunch##suffix)(graph, stream);                       \
		return launch(&(struct graph_launch){                                              \
		    graph, stream, DRIVER(cuGraphLaunch##suffix),                                  \
		    DRIVER_HAS(cuGraphUpload##suffix) ? DRIVER(cuGraphUpload##suffix) : NULL});    \
	}                                                                                          \
	CUresult cuGraphUpload##suffix(CUgraphExec graph, CUstream stream)                         \
	{                                                                                          \
		if (!graph_maybe(graph))                                                           \
			return DRIVER(cuGraphUpload##suffix)(graph, stream);                       \
		return launch(&(struct graph_launch){graph, stream, DRIVER(cuGraphUpload##suffix), \
		                                     DRIVER(cuGraphUpload##suffix)});              \
	}

LAUNCHES()
LAUNCHES(_ptsz)

/* --- instantiation ---------------------------------------------------------------------------- */

static CUcontext context_of(const struct graph_needs *needs, size_t i)
{
	return (CUcontext)(uintptr_t)needs->stacks[i].context;
}

static void stacks_end(struct raise raises[GRAPH_CONTEXTS], const struct graph_needs *needs)
{
	for (size_t i = 0; i < needs->stack_count; i++) {
		IN_CONTEXT(context_of(needs, i));
		stack_end(&raises[i]);
	}
}

/* Charge the stacks in each context of the graph's kernels. Return false if they do not fit; the
 * call is then not made. */
static bool stacks_begin(struct raise raises[GRAPH_CONTEXTS], const struct graph_needs *needs)
{
	bool fits = true;

	for (size_t i = 0; i < needs->stack_count; i++) {
		IN_CONTEXT(context_of(needs, i));
		raises[i] = (struct raise){0};
		fits = fits && stack_begin(&raises[i], needs->stacks[i].frame, false);
	}
	if (!fits)
		stacks_end(raises, needs);
	return fits;
}

struct making {
	struct graph_needs needs;
	struct raise raises[GRAPH_CONTEXTS];
	struct watch watch;
};

/* Return false if the stacks do not fit; the call is then not made. */
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
	/* The memory stays when the graph is destroyed, so there is nothing to undo. */
	if (!watch_end(&making->watch, LEDGER_CALL_GRAPH, &bytes))
		overhead_settle(making->watch.ordinal);
	if (result == CUDA_SUCCESS)
		graph_learn(graph, &making->needs);
	graph_needs_end(&making->needs);
	return result;
}

#define MAKING(graph, source, call)                                                                \
	do {                                                                                       \
		struct making making;                                                              \
		CUresult result;                                                                   \
                                                                                                   \
		if (!making_begin(&making, source))                                                \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = call;                                                                     \
		return making_end(&making, result, result ? NULL : *(graph));                      \
	} while (0)

CUresult cuGraphInstantiate(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                            size_t bytes)
{
	MAKING(graph, source, DRIVER(cuGraphInstantiate)(graph, source, error, log, bytes));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                               size_t bytes)
{
	MAKING(graph, source, DRIVER(cuGraphInstantiate_v2)(graph, source, error, log, bytes));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *graph, CUgraph source, unsigned long long flags)
{
	MAKING(graph, source, DRIVER(cuGraphInstantiateWithFlags)(graph, source, flags));
}

/* The only instantiation that may upload: a call of our own does it, which is charged. */
typedef CUresult (*instantiate_function)(CUgraphExec *graph, CUgraph source,
                                         CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);

static CUresult make(instantiate_function call, CUgraphExec *graph, CUgraph source,
                     CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	MAKING(graph, source, call(graph, source, parameters));
}

static CUresult instantiate(instantiate_function call,
                            CUresult (*upload)(CUgraphExec graph, CUstream stream),
                            CUgraphExec *graph, CUgraph source,
                            CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	CUresult result;

	if (!parameters || !(parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
		return make(call, graph, source, parameters);
	parameters->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	result = make(call, graph, source, parameters);
	parameters->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	if (result != CUDA_SUCCESS)
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

/* The graph's memory stays reserved until a trim. */
CUresult cuGraphExecDestroy(CUgraphExec graph)
{
	/* Before the call: another graph may get the handle as soon as the driver frees it. */
	if (graph_maybe(graph))
		graph_forget(graph);
	return DRIVER(cuGraphExecDestroy)(graph);
}

/* An update replaces kernels. It cannot change allocations. */

static struct graph_needs needs_of_kernel(const CUDA_KERNEL_NODE_PARAMS *parameters,
                                          bool of_library)
{
	struct graph_needs needs = {0};

	if (parameters)
		graph_look_at_kernel(parameters, of_library, &needs);
	return needs;
}

static struct graph_needs needs_of_node(const struct CUgraphNodeParams_st *parameters)
{
	bool is_kernel = parameters && parameters->type == CU_GRAPH_NODE_TYPE_KERNEL;

	return needs_of_kernel(is_kernel ? &parameters->kernel : NULL, true);
}

/* Another graph's allocations do not matter. */
static struct graph_needs needs_of_kernels(CUgraph source)
{
	struct graph_needs needs = {0};

	if (function_any_large()) {
		graph_look(source, &needs);
		graph_needs_end(&needs);
	}
	return needs;
}

#define UPDATES(name, parameters, arguments, kernels)                                              \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct graph_needs needs = kernels;                                                \
		struct raise raises[GRAPH_CONTEXTS];                                               \
		CUresult result;                                                                   \
                                                                                                   \
		if (!needs.stack_count)                                                            \
			return DRIVER(name) arguments;                                             \
		if (!stacks_begin(raises, &needs))                                                 \
			return CUDA_ERROR_OUT_OF_MEMORY;                                           \
		result = DRIVER(name) arguments;                                                   \
		stacks_end(raises, &needs);                                                        \
		return result;                                                                     \
	}

UPDATES(cuGraphExecKernelNodeSetParams,
        (CUgraphExec graph, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters),
        (graph, node, parameters), needs_of_kernel(parameters, false))
UPDATES(cuGraphExecKernelNodeSetParams_v2,
        (CUgraphExec graph, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters),
        (graph, node, parameters), needs_of_kernel(parameters, true))
UPDATES(cuGraphExecNodeSetParams,
        (CUgraphExec graph, CUgraphNode node, const struct CUgraphNodeParams_st *parameters),
        (graph, node, parameters), needs_of_node(parameters))
UPDATES(cuGraphExecChildGraphNodeSetParams, (CUgraphExec graph, CUgraphNode node, CUgraph child),
        (graph, node, child), needs_of_kernels(child))
UPDATES(cuGraphExecUpdate, (CUgraphExec graph, CUgraph source, CUgraphNode *error, int *status),
        (graph, source, error, status), needs_of_kernels(source))
UPDATES(cuGraphExecUpdate_v2,
        (CUgraphExec graph, CUgraph source, CUgraphExecUpdateResultInfo *info),
        (graph, source, info), needs_of_kernels(source))

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult result = DRIVER(cuDeviceGraphMemTrim)(device);
	struct pool *pool = pool_of_graphs_known(device);

	if (pool)
		pool_shrunk(pool);
	return result;
}
