/* SPDX-License-Identifier: Apache-2.0 */
/* What this process knows of its executable graphs: which of them allocate, where, and how much. */
#ifndef GPUSLICE_GRAPH_H
#define GPUSLICE_GRAPH_H

#include "process.h"

/*
 * `process.graphs` has an entry for each device on which a graph allocates, by this key: bytes is
 * the most that the graph can make the device's memory of graphs grow by; owner and uses are
 * hook_graph.c's. Handles are pointers to larger things, so the numbers that follow one are free.
 */
#define GRAPH_PLACES 8

static inline uint64_t graph_key(CUgraphExec graph, unsigned place)
{
	return (uint64_t)(uintptr_t)graph + place;
}

static inline uint32_t *graph_present(struct process *process, CUgraphExec graph)
{
	uint64_t hash = ((uint64_t)(uintptr_t)graph >> 4) * 0x9e3779b97f4a7c15ull;

	return &process->graphs_present[hash >> 56];
}

/* False if the graph surely does not allocate: a look at one word. */
static inline bool graph_maybe(struct process *process, CUgraphExec graph)
{
	return __atomic_load_n(graph_present(process, graph), __ATOMIC_ACQUIRE) != 0;
}

/* After `graph` was made of `source`: look what it allocates. */
void graph_learn(CUgraphExec graph, CUgraph source);

void graph_forget(struct process *process, CUgraphExec graph);

#endif
