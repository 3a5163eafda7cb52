/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph graph_create(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph)
		graph->end = &graph->first;
	return graph;
}

void graph_destroy(CUgraph graph)
{
	while (graph->first) {
		CUgraphNode node = graph->first;

		graph->first = node->next;
		if (node->child)
			graph_destroy(node->child);
		free(node->after);
		free(node);
	}
	if (graph->memory) {
		for (struct graph_slot *slot = graph->memory->slots; slot; slot = slot->next)
			slot->freed = NULL;
		graph_memory_drop(graph->memory);
	}
	free(graph);
}

static bool are_nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!nodes || !nodes[i] || nodes[i]->graph != graph)
			return false;
	return true;
}

CUresult graph_add(CUgraph graph, int type, const CUgraphNode *after, size_t count,
                   CUgraphNode *out)
{
	CUgraphNode node;

	if (!are_nodes_of(graph, after, count))
		return CUDA_ERROR_INVALID_VALUE;
	node = calloc(1, sizeof(*node));
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->after = calloc(count + 1, sizeof(*node->after));
	if (!node->after) {
		free(node);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (count)
		memcpy(node->after, after, count * sizeof(*after));
	node->after_count = count;
	node->graph = graph;
	node->type = type;
	*graph->end = node;
	graph->end = &node->next;
	graph->count++;
	*out = node;
	return CUDA_SUCCESS;
}

static bool has_mark(const CUgraphNode *nodes, size_t count, unsigned mark)
{
	for (size_t i = 0; i < count; i++)
		if (nodes[i]->mark == mark)
			return true;
	return false;
}

/*
 * True if `earlier` has always run when all of `nodes` have. A node is younger than those that it
 * depends on, so one pass over the younger nodes is enough.
 */
static bool comes_after(const CUgraphNode *nodes, size_t count, CUgraphNode earlier)
{
	static unsigned mark;

	earlier->mark = ++mark;
	for (CUgraphNode node = earlier->next; node; node = node->next)
		if (has_mark(node->after, node->after_count, mark))
			node->mark = mark;
	return has_mark(nodes, count, mark);
}

/* An allocation after a free reuses its addresses. */
static struct graph_slot *find_slot(CUgraph graph, const CUgraphNode *after, size_t count,
                                    const struct device *device, size_t size)
{
	for (struct graph_slot *slot = graph->memory->slots; slot; slot = slot->next)
		if (!slot->taken && slot->device == device && slot->bytes >= size && slot->freed &&
		    comes_after(after, count, slot->freed))
			return slot;
	return NULL;
}

CUresult graph_add_alloc(CUgraph graph, const CUgraphNode *after, size_t count,
                         CUDA_MEM_ALLOC_NODE_PARAMS *params, CUgraphNode *out)
{
	struct device *device;
	struct graph_slot *slot;

	if (!are_nodes_of(graph, after, count) || !params->bytesize ||
	    params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	device = device_at(params->poolProps.location.id);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (params->bytesize > 2 * device_capacity(device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!graph->memory)
		graph->memory = graph_memory_create();
	if (!graph->memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	slot = find_slot(graph, after, count, device, params->bytesize);
	if (!slot)
		slot = graph_slot_create(graph->memory, device, params->bytesize);
	if (!slot)
		return CUDA_ERROR_OUT_OF_MEMORY;
	TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, after, count, out));
	slot->taken = true;
	params->dptr = slot->range.start;
	graph->allocates = true;
	(*out)->slot = slot;
	(*out)->params = *params;
	return CUDA_SUCCESS;
}

/* The slot of the graph's allocation at the address, if it is not freed yet. */
static struct graph_slot *slot_at(CUgraph graph, CUdeviceptr pointer)
{
	struct graph_slot *slot = graph->memory ? graph->memory->slots : NULL;

	while (slot && (!slot->taken || slot->range.start != pointer))
		slot = slot->next;
	return slot;
}

static CUgraphNode last_alloc(CUgraph graph, const struct graph_slot *slot)
{
	CUgraphNode last = NULL;

	for (CUgraphNode node = graph->first; node; node = node->next)
		if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->slot == slot)
			last = node;
	return last;
}

CUresult graph_add_free(CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr pointer,
                        CUgraphNode *out)
{
	struct graph_slot *slot = slot_at(graph, pointer);
	const struct range *range = ranges_at(&allocations, pointer);

	/* Of other graphs' allocations only existing ones can be recognised. */
	if (!are_nodes_of(graph, after, count))
		return CUDA_ERROR_INVALID_VALUE;
	if (slot ? !comes_after(after, count, last_alloc(graph, slot))
	         : !range || range->kind != RANGE_GRAPH || range->start != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, after, count, out));
	graph->allocates = true;
	(*out)->params.dptr = pointer;
	(*out)->slot = slot;
	if (slot) {
		slot->taken = false;
		slot->freed = *out;
	}
	return CUDA_SUCCESS;
}
