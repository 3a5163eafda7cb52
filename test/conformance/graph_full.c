/* SPDX-License-Identifier: Apache-2.0 */
/* A graph that finds less free memory than it needs. What it reserves of the card stays with the
 * process, so this is a program of its own. */
#include "graphs.h"

static bool is_reserved(void)
{
	return attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) > GiB;
}

static void say_reserved(const char *key)
{
	printf("%s: still reserved %d\n", key, is_reserved());
}

/* A graph reserves addresses for its nodes. */
static void say_node(const char *key, size_t size)
{
	CUDA_MEM_ALLOC_NODE_PARAMS params = bytes(size);
	struct chain alone = chain();
	CUgraphNode node;

	say_result(key, cuGraphAddMemAllocNode(&node, alone.graph, NULL, 0, &params));
	MUST(cuGraphDestroy(alone.graph));
}

int main(void)
{
	struct chain made;
	CUgraphExec exec;
	CUdeviceptr big;
	size_t available, total;

	start_graphs();
	made = chain();
	MUST(cuMemGetInfo_v2(&available, &total));
	say_node("node.twice_the_card", 2 * total);
	say_node("node.thrice_the_card", 3 * total);
	add_free(&made, add_alloc(&made, (available - 512 * MiB) / GiB * GiB));
	MUST(cuMemAlloc_v2(&big, available / 4 * 3 / GiB * GiB));
	exec = instantiate(made.graph);
	say_result("full.upload", cuGraphUpload(exec, first));
	say_result("full.launch", cuGraphLaunch(exec, first));
	say_result("full.synchronize", cuStreamSynchronize(first));
	MUST(cuMemGetInfo_v2(&available, &total));
	printf("full.reserved: all but less than 32 MiB %d\n",
	       is_reserved() && available < 32 * MiB);
	MUST(cuMemFree_v2(big));
	MUST(cuDeviceGraphMemTrim(0));
	say_reserved("full.trim");
	MUST(cuGraphExecDestroy(exec));
	say_reserved("full.exec_destroyed");
	MUST(cuDeviceGraphMemTrim(0));
	say_reserved("full.exec_destroyed.trim");
	MUST(cuGraphDestroy(made.graph));
	MUST(cuDevicePrimaryCtxReset_v2(0));
	say_reserved("full.reset");
	printf("full.reset: still held %d\n", held() - before > (long long)GiB);
	return 0;
}
