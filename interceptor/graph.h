/* SPDX-License-Identifier: Apache-2.0 */
/* The executable graphs of this process: which of them allocate, where, and how much. */
#ifndef GPUSLICE_GRAPH_H
#define GPUSLICE_GRAPH_H

#include "map.h"
#include "process.h"

#define GRAPH_PLACES 8   /* devices on which one graph allocates */
#define GRAPH_CONTEXTS 8 /* contexts in which one graph's kernels run */
#define GRAPH_PRESENT 256

struct graph_use {
	CUdevice ordinal;
	uint64_t bytes; /* the most by which it can grow the device's graph memory */
	/* The last launch, and how often the graph memory had shrunk by then. */
	bool launched;
	CUstream stream;
	uint32_t shrunk;
};

struct graphs {
	struct lock lock; /* guards `uses` */
	/* By key_of(). Handles are pointers to larger objects, so the next numbers are free. */
	MAP(struct graph_use) uses;
	uint32_t present[GRAPH_PRESENT]; /* graphs that allocate and hash here */
};

/* Return false if the graph certainly does not allocate. Reads one word. */
bool graph_maybe(CUgraphExec graph);

/* Get, or set, the use of the graph's device number `place`. graph_use() returns false past the
 * last. */
bool graph_use(CUgraphExec graph, unsigned place, struct graph_use *use);
void graph_used(CUgraphExec graph, unsigned place, const struct graph_use *use);

/* The needs of a graph that is not executable yet. */
struct graph_needs {
	struct allocation *allocations;
	size_t count, room;
	size_t nodes;
	bool incomplete; /* some allocations cannot be seen */
	/* The largest frame in each context, if above STACK_DEFAULT. */
	struct {
		uint64_t context;
		uint32_t frame;
	} stacks[GRAPH_CONTEXTS];
	size_t stack_count;
};

/* Find a graph's needs, to be freed by graph_needs_end(). */
void graph_look(CUgraph source, struct graph_needs *needs);
void graph_needs_end(struct graph_needs *needs);

/* Add a kernel's needs. With `of_library`, the parameters may name a library's kernel. */
void graph_look_at_kernel(const CUDA_KERNEL_NODE_PARAMS *parameters, bool of_library,
                          struct graph_needs *needs);

void graph_learn(CUgraphExec graph, struct graph_needs *needs);
void graph_forget(CUgraphExec graph);

#endif
