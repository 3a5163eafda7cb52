/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs that allocate. Recording or instantiating such a graph takes no memory; uploading or
 * launching it does, from the device's memory of graphs (pool.h), and what it took stays there
 * until that is trimmed (driver observation, H100, 580.159.04). Graphs that run one after another
 * use the same memory, so what one will make it grow by is known only at most: each address that it
 * allocates, in whole steps.
 *
 * A graph without allocations costs a look at one word per launch.
 */
#include "graph.h"
#include "hook.h"
#include "pool.h"

/*
 * A graph that was uploaded or launched, and launched again in the same stream with no memory of
 * graphs let go of meanwhile, takes none.
 */
static bool is_resident(const struct map_value *value, CUstream stream, const struct pool *pool)
{
	return value->owner == (uint64_t)(uintptr_t)stream &&
	       (uint32_t)value->uses ==
	           (__atomic_load_n(&pool->shrunk, __ATOMIC_RELAXED) & INT32_MAX);
}

/* A call that may make the device's memory of graphs grow. */
struct launch {
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
static CUresult upload_first(struct process *process, struct pool *pool, const struct launch *l)
{
	CUresult result = l->upload(l->graph, l->stream);

	lock_take(&pool->lock);
	if (!pool_settle(pool, false))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	lock_give(&pool->lock);
	if (result != CUDA_SUCCESS)
		(void)pool_give_back(process, pool->ordinal);
	return result;
}

/* Charge the most that the launch may take, or find that it takes less. */
static CUresult prepare(struct process *process, struct pool *pool, const struct launch *l,
                        uint64_t most, uint64_t *charged)
{
	if (process_try_charge(pool->ordinal, most) != CHARGE_OK) {
		if (l->upload && __atomic_load_n(&pool->reserved, __ATOMIC_RELAXED))
			return upload_first(process, pool, l);
		if (process_charge(pool->ordinal, most, "a graph's launch") != CHARGE_OK)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*charged = most;
	lock_take(&pool->lock);
	pool->pending += most;
	__atomic_store_n(&pool->charged, pool->charged + most, __ATOMIC_RELAXED);
	lock_give(&pool->lock);
	return CUDA_SUCCESS;
}

static __attribute__((noinline)) CUresult launch(struct process *process, const struct launch *l)
{
	struct pool *pools[GRAPH_PLACES];
	struct map_value values[GRAPH_PLACES];
	uint64_t charged[GRAPH_PLACES] = {0};
	unsigned count = 0;
	CUresult result = CUDA_SUCCESS;

	while (count < GRAPH_PLACES &&
	       map_get(&process->graphs, graph_key(l->graph, count), &values[count])) {
		pools[count] = pool_of_graphs(process, values[count].ordinal);
		if (!pools[count] || !process_ready(values[count].ordinal))
			return CUDA_ERROR_OUT_OF_MEMORY;
		count++;
	}
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (is_resident(&values[i], l->stream, pools[i]) || !values[i].bytes)
			continue;
		result = prepare(process, pools[i], l, values[i].bytes, &charged[i]);
	}
	if (result == CUDA_SUCCESS)
		result = l->call(l->graph, l->stream);
	for (unsigned i = 0; i < count; i++) {
		struct pool *pool = pools[i];

		/* A launch that fails for want of memory leaves what it got so far reserved (driver
		 * observation): nobody asked for that. */
		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			(void)pool_give_back(process, pool->ordinal);
		if (charged[i] || pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) !=
		                      __atomic_load_n(&pool->reserved, __ATOMIC_RELAXED)) {
			lock_take(&pool->lock);
			pool->pending -= charged[i];
			(void)pool_settle(pool, true);
			lock_give(&pool->lock);
		}
		if (result != CUDA_SUCCESS || is_resident(&values[i], l->stream, pool))
			continue;
		values[i].owner = (uint64_t)(uintptr_t)l->stream;
		values[i].uses =
		    (int32_t)(__atomic_load_n(&pool->shrunk, __ATOMIC_RELAXED) & INT32_MAX);
		(void)map_put(&process->graphs, graph_key(l->graph, i), values[i]);
	}
	return result;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct launch l = {.graph = graph, .stream = stream};

	if (__builtin_expect(!process || !graph_maybe(process, graph), 1))
		return DRIVER(cuGraphLaunch)(graph, stream);
	l.call = DRIVER(cuGraphLaunch);
	l.upload = DRIVER_HAS(cuGraphUpload) ? DRIVER(cuGraphUpload) : NULL;
	return launch(process, &l);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct launch l = {.graph = graph, .stream = stream};

	if (__builtin_expect(!process || !graph_maybe(process, graph), 1))
		return DRIVER(cuGraphLaunch_ptsz)(graph, stream);
	l.call = DRIVER(cuGraphLaunch_ptsz);
	l.upload = DRIVER_HAS(cuGraphUpload_ptsz) ? DRIVER(cuGraphUpload_ptsz) : NULL;
	return launch(process, &l);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct launch l = {.graph = graph, .stream = stream};

	if (!process || !graph_maybe(process, graph))
		return DRIVER(cuGraphUpload)(graph, stream);
	l.call = l.upload = DRIVER(cuGraphUpload);
	return launch(process, &l);
}

CUresult cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct launch l = {.graph = graph, .stream = stream};

	if (!process || !graph_maybe(process, graph))
		return DRIVER(cuGraphUpload_ptsz)(graph, stream);
	l.call = l.upload = DRIVER(cuGraphUpload_ptsz);
	return launch(process, &l);
}

CUresult cuGraphInstantiate(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                            size_t bytes)
{
	CUresult result;

	result = DRIVER(cuGraphInstantiate)(graph, source, error, log, bytes);
	if (result == CUDA_SUCCESS)
		graph_learn(*graph, source);
	return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *graph, CUgraph source, CUgraphNode *error, char *log,
                               size_t bytes)
{
	CUresult result;

	result = DRIVER(cuGraphInstantiate_v2)(graph, source, error, log, bytes);
	if (result == CUDA_SUCCESS)
		graph_learn(*graph, source);
	return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *graph, CUgraph source, unsigned long long flags)
{
	CUresult result;

	result = DRIVER(cuGraphInstantiateWithFlags)(graph, source, flags);
	if (result == CUDA_SUCCESS)
		graph_learn(*graph, source);
	return result;
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
	CUresult result;

	if (uploads)
		parameters->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	result = call(graph, source, parameters);
	if (uploads)
		parameters->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	if (result != CUDA_SUCCESS)
		return result;
	graph_learn(*graph, source);
	if (!uploads)
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
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);

	/* Before the call: the handle may be another graph's as soon as it is let go. */
	if (process && graph_maybe(process, graph))
		graph_forget(process, graph);
	return DRIVER(cuGraphExecDestroy)(graph);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	CUresult result;

	result = DRIVER(cuDeviceGraphMemTrim)(device);
	if (process && device >= 0 && device < PROCESS_ORDINALS && process->graph_pool[device])
		pool_shrunk(process->graph_pool[device]);
	return result;
}
