/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include "context.h"
#include "function.h"
#include "pool.h"
#include "state.h"
#include "table.h"

#include <stdlib.h>

struct allocation {
	CUdeviceptr pointer;
	uint64_t bytes;
	CUdevice ordinal;
};

static void add_allocation(struct graph_needs *needs, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	if (parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return;
	if (needs->count == needs->room) {
		size_t room = needs->room ? 2 * needs->room : 16;
		struct allocation *more = realloc(needs->allocations, room * sizeof(*more));

		if (!more) {
			needs->incomplete = true;
			return;
		}
		needs->allocations = more;
		needs->room = room;
	}
	needs->allocations[needs->count++] =
	    (struct allocation){.pointer = parameters->dptr,
	                        .bytes = parameters->bytesize,
	                        .ordinal = parameters->poolProps.location.id};
}

#define GRAPHS_WITHIN 64 /* graphs that wait to be searched */

/* Graphs still to be searched. */
struct todo {
	CUgraph graph[GRAPHS_WITHIN];
	size_t count;
};

static void add_stack(struct graph_needs *needs, uint64_t context, uint32_t frame)
{
	size_t i = 0;

	while (i < needs->stack_count && needs->stacks[i].context != context)
		i++;
	if (i == GRAPH_CONTEXTS)
		return;
	if (i == needs->stack_count) {
		needs->stacks[i].context = context;
		needs->stacks[i].frame = 0;
		needs->stack_count++;
	}
	if (frame > needs->stacks[i].frame)
		needs->stacks[i].frame = frame;
}

/* A function runs in its module's context. A library's kernel runs in the context that the
 * parameters name, or else in the current one. */
void graph_look_at_kernel(const CUDA_KERNEL_NODE_PARAMS *parameters, bool of_library,
                          struct graph_needs *needs)
{
	struct function function;
	struct context known;
	uint64_t context;
	uint32_t frame;

	/* Frames matter only if some function has a large one. */
	if (!function_any_large())
		return;
	frame = function_frame_of(parameters->func, of_library ? parameters->kern : NULL);
	if (frame <= STACK_DEFAULT)
		return;
	(void)function_find(parameters->func, &function);
	context = function.context;
	if (context && !context_get(context, &known))
		context = 0; /* a reused handle: its former function ended with this context */
	if (!context && of_library && parameters->ctx)
		context = context_owner(parameters->ctx);
	add_stack(needs, context ? context : context_current(), frame);
}

/* The program may never have looked up the function of a library's kernel, so the driver names
 * it. */
static void look_at_node(CUgraphNode node, struct graph_needs *needs)
{
	CUDA_KERNEL_NODE_PARAMS parameters = {0};
	CUresult result;

	if (!function_any_large())
		return;
	if (DRIVER_HAS(cuGraphKernelNodeGetParams_v2))
		result = DRIVER(cuGraphKernelNodeGetParams_v2)(node, &parameters);
	else
		result = DRIVER(cuGraphKernelNodeGetParams)(node, &parameters);
	if (result == CUDA_SUCCESS)
		graph_look_at_kernel(&parameters, true, needs);
}

static void look_at(CUgraphNode node, struct graph_needs *needs, struct todo *todo)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUgraph within = NULL;
	int type = -1;

	if (DRIVER(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_KERNEL)
		look_at_node(node, needs);
	else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
	         DRIVER(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS)
		add_allocation(needs, &parameters);
	else if (type == CU_GRAPH_NODE_TYPE_GRAPH && todo->count < GRAPHS_WITHIN &&
	         DRIVER(cuGraphChildGraphNodeGetGraph)(node, &within) == CUDA_SUCCESS)
		todo->graph[todo->count++] = within;
	else if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		needs->incomplete = true;
}

void graph_look(CUgraph source, struct graph_needs *needs)
{
	struct todo todo = {.graph = {source}, .count = 1};

	*needs = (struct graph_needs){0};
	if (!source || !DRIVER_HAS(cuGraphGetNodes) || !DRIVER_HAS(cuGraphNodeGetType) ||
	    !DRIVER_HAS(cuGraphMemAllocNodeGetParams) || !DRIVER_HAS(cuGraphChildGraphNodeGetGraph))
		return;
	while (todo.count) {
		CUgraph next = todo.graph[--todo.count];
		CUgraphNode *nodes;
		size_t count = 0;

		if (DRIVER(cuGraphGetNodes)(next, NULL, &count) != CUDA_SUCCESS || count == 0)
			continue;
		nodes = calloc(count, sizeof(CUgraphNode));
		if (!nodes || DRIVER(cuGraphGetNodes)(next, nodes, &count) != CUDA_SUCCESS) {
			needs->incomplete = true;
			count = 0;
		}
		needs->nodes += count;
		for (size_t i = 0; i < count; i++)
			look_at(nodes[i], needs, &todo);
		free(nodes);
	}
}

void graph_needs_end(struct graph_needs *needs)
{
	free(needs->allocations);
}

/* --- executable graphs ------------------------------------------------------------------------ */

static uint64_t key_of(CUgraphExec graph, unsigned place)
{
	return (uint64_t)(uintptr_t)graph + place;
}

static uint32_t *present(struct graphs *graphs, CUgraphExec graph)
{
	uint64_t hash = ((uint64_t)(uintptr_t)graph >> 4) * 0x9e3779b97f4a7c15ull;

	return &graphs->present[hash >> 56];
}

bool graph_maybe(CUgraphExec graph)
{
	return __atomic_load_n(present(&state.graphs, graph), __ATOMIC_ACQUIRE) != 0;
}

bool graph_use(CUgraphExec graph, unsigned place, struct graph_use *use)
{
	STATE_LOCKED(graphs, graphs);
	struct graph_use *known = map_find(&graphs->uses, key_of(graph, place));

	if (known)
		*use = *known;
	return known;
}

void graph_used(CUgraphExec graph, unsigned place, const struct graph_use *use)
{
	STATE_LOCKED(graphs, graphs);
	struct graph_use *known = map_find(&graphs->uses, key_of(graph, place));

	if (known)
		*known = *use;
}

/* Called with the lock held. */
static void forget(struct graphs *graphs, CUgraphExec graph)
{
	for (unsigned place = 0; place < GRAPH_PLACES; place++) {
		struct graph_use *known = map_find(&graphs->uses, key_of(graph, place));

		if (!known)
			break;
		map_remove(&graphs->uses, known);
		if (place == 0)
			__atomic_fetch_sub(present(graphs, graph), 1, __ATOMIC_RELAXED);
	}
}

void graph_forget(CUgraphExec graph)
{
	STATE_LOCKED(graphs, graphs);

	forget(graphs, graph);
}

static void remember(struct graphs *graphs, CUgraphExec graph, unsigned place,
                     const struct graph_use *use)
{
	struct graph_use *known = map_put(&graphs->uses, key_of(graph, place), NULL);

	if (!known)
		return;
	*known = *use;
	if (place == 0)
		__atomic_fetch_add(present(graphs, graph), 1, __ATOMIC_RELEASE);
}

static int by_pointer(const void *a, const void *b)
{
	const struct allocation *x = a, *y = b;

	if (x->ordinal != y->ordinal)
		return x->ordinal < y->ordinal ? -1 : 1;
	if (x->pointer != y->pointer)
		return x->pointer < y->pointer ? -1 : 1;
	return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

/*
 * Return the most by which the allocations of one device, sorted by address, can grow its graph
 * memory. A step backs each 32 MiB of addresses that they touch. So small allocations share steps,
 * and allocations allocated one after the other at the same address share memory. Where a piece
 * lacks steps, the driver adds as many as its whole size takes (driver observation, H100,
 * 580.159.04).
 */
static uint64_t most_of(const struct allocation *at, size_t count)
{
	uint64_t used = 0, most = 0, done = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t first = at[i].pointer / POOL_STEP;
		uint64_t end = (at[i].pointer + at[i].bytes - 1) / POOL_STEP + 1;

		if (first < done)
			first = done;
		if (end <= first)
			continue;
		done = end;
		used += (end - first) * POOL_STEP;
		if (used > most)
			most += (at[i].bytes + POOL_STEP - 1) & ~(POOL_STEP - 1);
	}
	return most;
}

void graph_learn(CUgraphExec graph, struct graph_needs *needs)
{
	const struct allocation *at = needs->allocations;
	struct graphs *graphs;
	unsigned place = 0;

	if (!needs->count && !needs->incomplete)
		return;
	if (needs->count)
		qsort(needs->allocations, needs->count, sizeof(*at), by_pointer);
	graphs = STATE_TAKE(graphs);
	forget(graphs, graph); /* a graph whose destruction was not seen */
	for (size_t i = 0, end = 0; i < needs->count && place < GRAPH_PLACES; i = end, place++) {
		struct graph_use use = {.ordinal = at[i].ordinal};

		while (end < needs->count && at[end].ordinal == use.ordinal)
			end++;
		use.bytes = most_of(&at[i], end - i);
		remember(graphs, graph, place, &use);
	}
	if (place == 0 && process_current_ordinal() >= 0)
		remember(graphs, graph, 0,
		         &(struct graph_use){.ordinal = process_current_ordinal()});
	lock_give(&graphs->lock);
}
