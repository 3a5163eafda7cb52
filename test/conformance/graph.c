/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that allocate: when they take memory of the card, how much, and when it is freed. */
#include "graphs.h"

static void freed_inside(void)
{
	struct chain made = chain();
	CUdeviceptr pointer = add_alloc(&made, 100 * MiB);
	CUgraphExec exec;

	say("inside.added");
	add_free(&made, pointer);
	exec = instantiate(made.graph);
	say("inside.instantiated");
	MUST(cuGraphUpload(exec, first));
	MUST(cuStreamSynchronize(first));
	say("inside.uploaded");
	trim("inside.uploaded.trim");
	launch(exec, first);
	say("inside.launched");
	launch(exec, first);
	say("inside.launched_twice");
	trim("inside.launched.trim");
	launch(exec, first);
	say("inside.launched_after_trim");
	MUST(cuGraphExecDestroy(exec));
	say("inside.exec_destroyed");
	trim("inside.exec_destroyed.trim");
	MUST(cuGraphDestroy(made.graph));
}

/* A graph with an allocation that others free. */
static void freed_outside(void)
{
	struct chain made = chain();
	CUdeviceptr pointer = add_alloc(&made, 64 * MiB), start;
	CUgraphExec exec = instantiate(made.graph);
	size_t size;

	launch(exec, first);
	say("outside.launched");
	say_result("outside.launched_again", cuGraphLaunch(exec, first));
	MUST(cuMemGetAddressRange_v2(&start, &size, pointer));
	printf("outside.range: start %d, size %zu\n", start == pointer, size);
	trim("outside.trim_while_allocated");
	MUST(cuMemFreeAsync(pointer, first));
	MUST(cuStreamSynchronize(first));
	say("outside.free_async");
	trim("outside.free_async.trim");
	launch(exec, first);
	MUST(cuMemFree_v2(pointer));
	say("outside.free");
	launch(exec, first);
	MUST(cuGraphExecDestroy(exec));
	say("outside.exec_destroyed");
	trim("outside.exec_destroyed.trim");
	MUST(cuMemFree_v2(pointer));
	trim("outside.freed.trim");
	MUST(cuGraphDestroy(made.graph));
}

static void sizes(void)
{
	static const size_t list[] = {1, 2 * MiB, 32 * MiB, 33 * MiB};

	for (size_t i = 0; i < COUNT(list); i++) {
		struct chain made = chain();
		CUgraphExec exec;
		char size[32];

		add_free(&made, add_alloc(&made, list[i]));
		exec = instantiate(made.graph);
		launch(exec, first);
		say(keyed("size.%s", size_text(size, list[i])));
		MUST(cuGraphExecDestroy(exec));
		MUST(cuGraphDestroy(made.graph));
		MUST(cuDeviceGraphMemTrim(0));
	}
}

/* Two allocations that live at the same time, and the reuse of their memory by another graph. */
static void pair(const char *key, size_t size)
{
	struct chain made = chain(), other = chain();
	CUdeviceptr a = add_alloc(&made, size), b = add_alloc(&made, size);
	CUgraphExec exec, other_exec;

	add_free(&made, a);
	add_free(&made, b);
	exec = instantiate(made.graph);
	launch(exec, first);
	say(keyed("%s.both", key));
	add_free(&other, add_alloc(&other, size));
	other_exec = instantiate(other.graph);
	launch(other_exec, first);
	say(keyed("%s.other_graph", key));
	MUST(cuGraphLaunch(exec, first));
	MUST(cuGraphLaunch(other_exec, second));
	MUST(cuCtxSynchronize());
	say(keyed("%s.two_streams", key));
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphExecDestroy(other_exec));
	say(keyed("%s.destroyed", key));
	trim(keyed("%s.trim", key));
	MUST(cuGraphDestroy(made.graph));
	MUST(cuGraphDestroy(other.graph));
}

static int by_size(const void *a, const void *b)
{
	unsigned long long x = *(const CUdeviceptr *)a, y = *(const CUdeviceptr *)b;

	return x < y ? -1 : x > y;
}

/* The distinct windows of 32 MiB that the addresses are in. */
static int windows(const CUdeviceptr *pointer, const size_t *size, size_t kinds, int count)
{
	CUdeviceptr list[2048];
	int found = 0, distinct = 0;

	for (int i = 0; i < count; i++)
		for (CUdeviceptr step = pointer[i] / (32 * MiB);
		     step <= (pointer[i] + size[i % kinds] - 1) / (32 * MiB) && found < 2048;
		     step++)
			list[found++] = step;
	qsort(list, (size_t)found, sizeof(*list), by_size);
	for (int i = 0; i < found; i++)
		distinct += i == 0 || list[i] != list[i - 1];
	return distinct;
}

/* Allocations of one graph that live at the same time. */
static void many(const char *key, const size_t *size, size_t kinds, int count)
{
	struct chain made = chain();
	CUdeviceptr pointer[200];
	CUgraphExec exec;

	for (int i = 0; i < count; i++)
		pointer[i] = add_alloc(&made, size[i % kinds]);
	for (int i = 0; i < count; i++)
		add_free(&made, pointer[i]);
	exec = instantiate(made.graph);
	launch(exec, first);
	say(keyed("many.%s", key));
	printf("many.%s.windows: %d\n", key, windows(pointer, size, kinds, count));
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(made.graph));
	trim(keyed("many.%s.trim", key));
}

static void in_turn(void)
{
	struct chain made = chain();
	CUdeviceptr a = add_alloc(&made, 40 * MiB), b;
	CUgraphExec exec;

	add_free(&made, a);
	b = add_alloc(&made, 40 * MiB);
	add_free(&made, b);
	printf("in_turn.same_address: %d\n", a == b);
	exec = instantiate(made.graph);
	launch(exec, first);
	say("in_turn.launched");
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(made.graph));
	trim("in_turn.trim");
}

static void say_nodes(CUgraph graph)
{
	CUgraphNode nodes[16];
	size_t count = COUNT(nodes);
	CUDA_MEM_ALLOC_NODE_PARAMS params = {0};

	MUST(cuGraphGetNodes(graph, nodes, &count));
	printf("capture.nodes:");
	for (size_t i = 0; i < count; i++) {
		CUdeviceptr freed = 0;
		int type;

		MUST(cuGraphNodeGetType(nodes[i], &type));
		printf(" %d", type);
		if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
			MUST(cuGraphMemAllocNodeGetParams(nodes[i], &params));
			printf(" (%zu, type %d, location %d.%d)", params.bytesize,
			       params.poolProps.allocType, params.poolProps.location.type,
			       params.poolProps.location.id);
		} else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
			MUST(cuGraphMemFreeNodeGetParams(nodes[i], &freed));
			printf(" (the same %d)", freed == params.dptr);
		}
	}
	printf("\n");
}

static void say_status(const char *key)
{
	int status = -1;

	MUST(cuStreamIsCapturing(first, &status));
	printf("%s: %d\n", key, status);
}

static void capture(void)
{
	CUgraphExecUpdateResultInfo info = {.result = -1};
	CUgraph graph, other;
	CUgraphExec exec, again;
	CUgraphNode node;
	CUdeviceptr pointer;

	MUST(cuStreamBeginCapture_v2(first, 2));
	say_status("capture.status");
	MUST(cuMemAllocAsync(&pointer, 50 * MiB, first));
	MUST(cuMemsetD8Async(pointer, 1, 50 * MiB, first));
	MUST(cuMemFreeAsync(pointer, first));
	MUST(cuStreamEndCapture(first, &graph));
	say_status("capture.status_after");
	say_nodes(graph);
	exec = instantiate(graph);
	say("capture.instantiated");
	launch(exec, first);
	say("capture.launched");
	say_result("capture.clone", cuGraphClone(&other, graph));
	MUST(cuGraphCreate(&other, 0));
	say_result("capture.as_child", cuGraphAddChildGraphNode(&node, other, NULL, 0, graph));
	say_result("capture.instantiate_again", cuGraphInstantiateWithFlags(&again, graph, 0));
	say_result("capture.update", cuGraphExecUpdate_v2(exec, graph, &info));
	printf("capture.update_result: %d\n", info.result);
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(other));
	MUST(cuGraphDestroy(graph));
	trim("capture.trim");

	MUST(cuStreamBeginCapture_v2(first, 2));
	say_result("capture.wait", cuStreamSynchronize(first));
	say_status("capture.status_after_wait");
	say_result("capture.alloc_after_wait", cuMemAllocAsync(&pointer, 1 * MiB, first));
	say_result("capture.end_after_wait", cuStreamEndCapture(first, &graph));
	say_result("capture.end_without_begin", cuStreamEndCapture(first, &graph));
	say_result("capture.default_stream", cuStreamBeginCapture_v2(NULL, 2));
}

/* The highest figures can be reset to the current ones. */
static void attributes(void)
{
	uint64_t none = 0, one = 1;

	say_result("attribute.set_high_1",
	           cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &one));
	say_result("attribute.set_current",
	           cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &none));
	MUST(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &none));
	MUST(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &none));
	say("attribute.high_set_back");
}

/* Each launch frees what the previous one allocated. */
static void auto_free(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
	                                        .hUploadStream = first};
	struct chain made = chain(), other = chain();
	CUdeviceptr pointer = add_alloc(&made, 64 * MiB);
	CUgraphExec exec;

	MUST(cuGraphInstantiateWithFlags(&exec, made.graph,
	                                 CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	launch(exec, first);
	launch(exec, first);
	say("auto_free.launched_twice");
	MUST(cuGraphExecDestroy(exec));
	trim("auto_free.exec_destroyed.trim");
	say_result(
	    "auto_free.instantiate_with_upload",
	    cuGraphInstantiateWithFlags(&exec, made.graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
	MUST(cuGraphInstantiateWithParams(&exec, made.graph, &params));
	say("auto_free.upload_while_allocated");
	MUST(cuGraphExecDestroy(exec));
	MUST(cuMemFree_v2(pointer));
	MUST(cuGraphInstantiateWithParams(&exec, made.graph, &params));
	say("auto_free.upload");
	/* Freed by a node of another graph. */
	launch(exec, first);
	add_free(&other, pointer);
	MUST(cuGraphExecDestroy(exec));
	exec = instantiate(other.graph);
	launch(exec, first);
	trim("auto_free.freed_by_other_graph.trim");
	say_result("auto_free.freed_twice", cuGraphLaunch(exec, first));
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(made.graph));
	MUST(cuGraphDestroy(other.graph));
}

static void generic(void)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .as.alloc = bytes(MiB)};
	struct chain made = chain();
	CUgraphNode node;
	CUgraphExec exec;

	say_result("generic.add", cuGraphAddNode_v2(&node, made.graph, NULL, NULL, 0, &params));
	printf("generic.has_address: %d\n", params.as.alloc.dptr != 0);
	say_result("generic.free_unknown",
	           cuGraphAddMemFreeNode(&node, made.graph, NULL, 0, 0x1000));
	MUST(cuGraphInstantiate_v2(&exec, made.graph, NULL, NULL, 0));
	launch(exec, first);
	say("generic.launched");
}

int main(void)
{
	start_graphs();
	say("start");
	freed_inside();
	freed_outside();
	sizes();
	pair("pair.40MiB", 40 * MiB);
	pair("pair.1", 1);
	in_turn();
	capture();
	many("1MiB", (const size_t[]){1 * MiB}, 1, 200);
	many("512", (const size_t[]){512}, 1, 200);
	many("20MiB", (const size_t[]){20 * MiB}, 1, 10);
	many("40MiB", (const size_t[]){40 * MiB}, 1, 2);
	many("40MiB.ten", (const size_t[]){40 * MiB}, 1, 10);
	many("33MiB.512", (const size_t[]){33 * MiB, 512}, 2, 20);
	many("mixed", (const size_t[]){3 * MiB, 40 * MiB, 20 * MiB, 7 * MiB, 1}, 5, 50);
	attributes();
	auto_free();
	generic();
	MUST(cuDevicePrimaryCtxReset_v2(0));
	say("reset");
	return 0;
}
