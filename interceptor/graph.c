/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include "hook.h"
#include "pool.h"

#include <stdlib.h>

/* One allocation of a graph. */
struct piece {
	CUdeviceptr pointer;
	uint64_t bytes;
	CUdevice ordinal;
};

struct pieces {
	struct piece *piece;
	size_t count, room;
	bool incomplete; /* there may be more that cannot be seen */
};

static void add_piece(struct pieces *pieces, const CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
	if (parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return;
	if (pieces->count == pieces->room) {
		size_t room = pieces->room ? 2 * pieces->room : 16;
		struct piece *more = realloc(pieces->piece, room * sizeof(*more));

		if (!more) {
			pieces->incomplete = true;
			return;
		}
		pieces->piece = more;
		pieces->room = room;
	}
	pieces->piece[pieces->count++] =
	    (struct piece){.pointer = parameters->dptr,
	                   .bytes = (parameters->bytesize + POOL_STEP - 1) & ~(POOL_STEP - 1),
	                   .ordinal = parameters->poolProps.location.id};
}

#define GRAPHS_WITHIN 64 /* graphs within a graph that are looked into */

/* A graph, and those within it that are still to be looked into. */
struct todo {
	CUgraph graph[GRAPHS_WITHIN];
	size_t count;
};

static void look_at(CUgraphNode node, struct pieces *pieces, struct todo *todo)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUgraph within = NULL;
	int type = -1;

	if (DRIVER(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
		return;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
	    DRIVER(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS)
		add_piece(pieces, &parameters);
	else if (type == CU_GRAPH_NODE_TYPE_GRAPH && todo->count < GRAPHS_WITHIN &&
	         DRIVER(cuGraphChildGraphNodeGetGraph)(node, &within) == CUDA_SUCCESS)
		todo->graph[todo->count++] = within;
	else if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
		pieces->incomplete = true;
}

static void collect(CUgraph graph, struct pieces *pieces)
{
	struct todo todo = {.graph = {graph}, .count = 1};

	while (todo.count) {
		CUgraph next = todo.graph[--todo.count];
		CUgraphNode *nodes;
		size_t count = 0;

		if (DRIVER(cuGraphGetNodes)(next, NULL, &count) != CUDA_SUCCESS || count == 0)
			continue;
		nodes = calloc(count, sizeof(CUgraphNode));
		if (!nodes || DRIVER(cuGraphGetNodes)(next, nodes, &count) != CUDA_SUCCESS) {
			pieces->incomplete = true;
			count = 0;
		}
		for (size_t i = 0; i < count; i++)
			look_at(nodes[i], pieces, &todo);
		free(nodes);
	}
}

static int by_pointer(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	if (x->ordinal != y->ordinal)
		return x->ordinal < y->ordinal ? -1 : 1;
	if (x->pointer != y->pointer)
		return x->pointer < y->pointer ? -1 : 1;
	return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

void graph_forget(struct process *process, CUgraphExec graph)
{
	struct map_value value;

	for (unsigned place = 0; place < GRAPH_PLACES; place++) {
		if (!map_take(&process->graphs, graph_key(graph, place), &value))
			break;
		if (place == 0)
			__atomic_fetch_sub(graph_present(process, graph), 1, __ATOMIC_RELAXED);
	}
}

static void remember(struct process *process, CUgraphExec graph, struct pieces *pieces)
{
	unsigned place = 0;

	graph_forget(process, graph); /* one whose destruction we did not see */
	if (pieces->count)
		qsort(pieces->piece, pieces->count, sizeof(*pieces->piece), by_pointer);
	for (size_t i = 0; i < pieces->count && place < GRAPH_PLACES; place++) {
		struct map_value value = {.ordinal = pieces->piece[i].ordinal, .uses = -1};

		for (; i < pieces->count && pieces->piece[i].ordinal == value.ordinal; i++) {
			/* The same address again is the same memory: an allocation that
			 * follows the other's free. */
			if (i == 0 || pieces->piece[i].pointer != pieces->piece[i - 1].pointer)
				value.bytes += pieces->piece[i].bytes;
		}
		if (map_put(&process->graphs, graph_key(graph, place), value) && place == 0)
			__atomic_fetch_add(graph_present(process, graph), 1, __ATOMIC_RELEASE);
	}
	if (place == 0 && pieces->incomplete) {
		struct map_value value = {.ordinal = process_current_ordinal(), .uses = -1};

		if (value.ordinal >= 0 && map_put(&process->graphs, graph_key(graph, 0), value))
			__atomic_fetch_add(graph_present(process, graph), 1, __ATOMIC_RELEASE);
	}
}

void graph_learn(CUgraphExec graph, CUgraph source)
{
	struct process *process = process_get();
	struct pieces pieces = {0};

	if (!process || !DRIVER_HAS(cuGraphGetNodes) || !DRIVER_HAS(cuGraphNodeGetType) ||
	    !DRIVER_HAS(cuGraphMemAllocNodeGetParams) || !DRIVER_HAS(cuGraphChildGraphNodeGetGraph))
		return;
	collect(source, &pieces);
	if (pieces.count || pieces.incomplete)
		remember(process, graph, &pieces);
	free(pieces.piece);
}
