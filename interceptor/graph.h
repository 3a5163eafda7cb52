/* SPDX-License-Identifier: Apache-2.0 */
/* What this process knows of its executable graphs: which of them allocate, where, and how much. */
#ifndef GPUSLICE_GRAPH_H
#define GPUSLICE_GRAPH_H

#include "map.h"
#include "process.h"

#define GRAPH_PLACES 8   /* devices on which one graph allocates */
#define GRAPH_CONTEXTS 8 /* in which one graph's kernels run */
#define GRAPH_PRESENT 256

/* What a graph may do on one device. */
struct graph_use {
	CUdevice ordinal;
	uint64_t bytes; /* the most that it can make the device's memory of graphs grow by */
	/* Where it was launched last, and how often that memory had shrunk by then. */
	bool launched;
	CUstream stream;
	uint32_t shrunk;
};

struct graphs {
	struct lock lock; /* guards `uses` */
	/* By graph_key(): handles are pointers to larger things, so the numbers that follow one are
	 * free. */
	MAP(struct graph_use) uses;
	uint32_t present[GRAPH_PRESENT]; /* how many graphs that allocate hash here */
};

/* False if the graph surely does not allocate: a look at one word. */
bool graph_maybe(CUgraphExec graph);

/* What the graph does on its device number `place`; false if there are not so many. */
bool graph_use(CUgraphExec graph, unsigned place, struct graph_use *use);
void graph_used(CUgraphExec graph, unsigned place, const struct graph_use *use);

/* What a graph that is not executable yet will need. */
struct graph_needs {
	struct piece *pieces; /* its allocations */
	size_t count, room;
	size_t nodes;
	bool incomplete; /* there may be more that cannot be seen */
	/* The largest frame of its kernels in each of their contexts, if that is more than comes
	 * with a context. */
	struct {
		uint64_t context;
		uint32_t frame;
	} stacks[GRAPH_CONTEXTS];
	size_t stack_count;
};

/* Look at it; graph_needs_end() gives back what that took. */
void graph_look(CUgraph source, struct graph_needs *needs);
void graph_needs_end(struct graph_needs *needs);

/* The same for one kernel, whose parameters name a library's or not. */
void graph_look_at_kernel(const CUDA_KERNEL_NODE_PARAMS *parameters, bool of_library,
                          struct graph_needs *needs);

/* `graph` was made of what was looked at; or it is no more. */
void graph_learn(CUgraphExec graph, struct graph_needs *needs);
void graph_forget(CUgraphExec graph);

#endif
