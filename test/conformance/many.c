/* SPDX-License-Identifier: Apache-2.0 */
#include "code.h"

#define STREAMS 1000
#define EVENTS 10000
#define NODES 100000

static void streams(void)
{
	static CUstream streams[STREAMS];
	static CUevent events[EVENTS];

	mark();
	for (int i = 0; i < STREAMS; i++) {
		MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		if (i == 99)
			say_taken("streams.100");
	}
	say_taken("streams.1000");
	for (int i = 0; i < EVENTS; i++)
		MUST(cuEventCreate(&events[i], 0));
	say_taken("events.10000");
	for (int i = 0; i < EVENTS; i++)
		MUST(cuEventDestroy_v2(events[i]));
	say_taken("events.destroyed");
	for (int i = 0; i < STREAMS; i++)
		MUST(cuStreamDestroy_v2(streams[i]));
	say_taken("streams.destroyed");
	for (int i = 0; i < STREAMS; i++)
		MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	say_taken("streams.again");
	for (int i = 0; i < STREAMS; i++)
		MUST(cuStreamDestroy_v2(streams[i]));
}

static CUgraph chain_of(CUfunction function, size_t count)
{
	CUDA_KERNEL_NODE_PARAMS params = kernel_node(function, NULL);
	CUgraphNode node, previous = NULL;
	CUgraph graph;

	MUST(cuGraphCreate(&graph, 0));
	for (size_t i = 0; i < count; i++) {
		MUST(cuGraphAddKernelNode_v2(&node, graph, &previous, previous ? 1 : 0, &params));
		previous = node;
	}
	return graph;
}

static void nodes(CUfunction function, size_t count)
{
	CUgraph graph = chain_of(function, count);
	CUgraphExec exec;
	char key[64];

#define SAY(what)                                                                                  \
	snprintf(key, sizeof(key), "nodes.%zu." what, count);                                      \
	say_taken(key)
	SAY("made");
	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	SAY("instantiated");
	MUST(cuGraphUpload(exec, NULL));
	SAY("uploaded");
	MUST(cuGraphLaunch(exec, NULL));
	MUST(cuCtxSynchronize());
	SAY("launched");
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(graph));
	SAY("destroyed");
#undef SAY
}

int main(void)
{
	CUmodule module;
	CUfunction function;

	start_with_context();
	streams();
	MUST(cuModuleLoadData(&module, PTX_HEADER PTX_EMPTY));
	MUST(cuModuleGetFunction(&function, module, "empty"));
	mark();
	nodes(function, 100);
	mark();
	nodes(function, NODES);
	nodes(function, NODES / 2);
	return 0;
}
