/* SPDX-License-Identifier: Apache-2.0 */
/* For the conformance programs of graphs that allocate. */
#ifndef CONFORMANCE_GRAPHS_H
#define CONFORMANCE_GRAPHS_H

#include "conformance.h"

static long long before;
static CUstream first, second;

static UNUSED uint64_t attribute(int which)
{
	uint64_t value = 0;

	MUST(cuDeviceGetGraphMemAttribute(0, which, &value));
	return value;
}

/* The highest figures are in brackets. */
static UNUSED void say(const char *key)
{
	printf("%s: used %llu (%llu), reserved %llu (%llu), held %lld\n", key,
	       (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT),
	       (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH),
	       (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT),
	       (unsigned long long)attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), held() - before);
}

static UNUSED CUDA_MEM_ALLOC_NODE_PARAMS bytes(size_t size)
{
	return (CUDA_MEM_ALLOC_NODE_PARAMS){
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
	    .bytesize = size};
}

/* Nodes in sequence. */
struct chain {
	CUgraph graph;
	CUgraphNode last;
};

static UNUSED struct chain chain(void)
{
	struct chain made = {0};

	MUST(cuGraphCreate(&made.graph, 0));
	return made;
}

static UNUSED CUdeviceptr add_alloc(struct chain *to, size_t size)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = bytes(size);
	CUgraphNode node;

	MUST(cuGraphAddMemAllocNode(&node, to->graph, &to->last, to->last ? 1 : 0, &params));
	to->last = node;
	return params.dptr;
}

static UNUSED void add_free(struct chain *to, CUdeviceptr pointer)
{
	CUgraphNode node;

	MUST(cuGraphAddMemFreeNode(&node, to->graph, &to->last, to->last ? 1 : 0, pointer));
	to->last = node;
}

static UNUSED CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec;

	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static UNUSED void launch(CUgraphExec exec, CUstream stream)
{
	MUST(cuGraphLaunch(exec, stream));
	MUST(cuStreamSynchronize(stream));
}

static UNUSED void trim(const char *key)
{
	MUST(cuDeviceGraphMemTrim(0));
	say(key);
}

/* A context and two streams. Measures from here. */
static UNUSED void start_graphs(void)
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;

	start_with_context();
	MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	/* Excludes the memory of the first launch in a stream. */
	MUST(cuGraphCreate(&graph, 0));
	MUST(cuGraphAddEmptyNode(&node, graph, NULL, 0));
	exec = instantiate(graph);
	launch(exec, first);
	launch(exec, second);
	before = held();
}

#endif
