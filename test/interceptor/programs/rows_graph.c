/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: their allocations are charged when they are uploaded or launched, and stay with the
 * device's graph memory, in steps of 32 MiB, until it is trimmed. */
#include "rows.h"

static CUstream stream;

static void begin_graphs(void)
{
	begin();
	OK(cuStreamCreate(&stream, 1));
}

static CUresult add(CUgraph graph, size_t bytes, bool freed, CUdeviceptr *pointer)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
	    .bytesize = bytes};
	CUgraphNode node = NULL, after = NULL;
	CUresult result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters);

	if (result == CUDA_SUCCESS && freed)
		result = cuGraphAddMemFreeNode(&after, graph, &node, 1, parameters.dptr);
	*pointer = parameters.dptr;
	return result;
}

static CUgraphExec graph_of(size_t bytes, bool freed, CUdeviceptr *pointer)
{
	CUgraphExec executable = NULL;
	CUgraph graph = NULL;

	OK(cuGraphCreate(&graph, 0));
	OK(add(graph, bytes, freed, pointer));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(cuGraphDestroy(graph));
	return executable;
}

static void run(CUgraphExec graph)
{
	OK(cuGraphLaunch(graph, stream));
	OK(cuStreamSynchronize(stream));
}

static void trim(const char *step, long long bytes)
{
	OK(cuDeviceGraphMemTrim(0));
	charged(step, bytes);
}

/* Many small pieces share steps; in steps of their own they would not fit. */
static void many_pieces(void)
{
	CUgraphExec executable = NULL;
	CUdeviceptr pointer[200];
	CUgraph graph = NULL;
	uint64_t reserved = 0;

	OK(cuGraphCreate(&graph, 0));
	for (int i = 0; i < 200; i++)
		OK(add(graph, MIB, false, &pointer[i]));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(cuGraphDestroy(graph));
	run(executable);
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
	charged("200 pieces of 1 MiB", (long long)reserved);
	for (int i = 0; i < 200; i++)
		OK(cuMemFree_v2(pointer[i]));
	OK(cuGraphExecDestroy(executable));
	trim("trimmed", 0);
}

static void explicit_within(void)
{
	CUdeviceptr pointer;
	CUgraphExec graph = graph_of(100 * MIB, true, &pointer);

	charged("a graph that allocates 100 MiB", 0);
	OK(cuGraphUpload(graph, stream));
	charged("uploaded", 128 * MIB);
	OK(cuGraphLaunch(graph, stream));
	run(graph);
	charged("launched twice", 128 * MIB);
	trim("trimmed", 0);
	run(graph);
	charged("launched after that", 128 * MIB);
	OK(cuGraphExecDestroy(graph));
	charged("the graph destroyed", 128 * MIB);
	trim("trimmed", 0);
	many_pieces();
	report("100 MiB charge 128 from upload or launch until the trim");
}

static void explicit_beyond(void)
{
	CUdeviceptr pointer;
	size_t room = left();
	CUgraphExec graph = graph_of(room + 64 * MIB, true, &pointer);

	OUT_OF_MEMORY("to upload it", cuGraphUpload(graph, stream));
	charged("after a refused upload", 0);
	OUT_OF_MEMORY("to launch it", cuGraphLaunch(graph, stream));
	OK(cuStreamSynchronize(stream));
	charged("after a refused launch", 0);
	OK(cuGraphExecDestroy(graph));
	graph = graph_of(64 * MIB, true, &pointer);
	run(graph);
	charged("a smaller one", 64 * MIB);
	OK(cuGraphExecDestroy(graph));
	trim("at the end", 0);
	report("%zu MiB refused at upload and at launch, 64 granted", room / MIB + 64);
}

static void outside_within(void)
{
	CUdeviceptr pointer;
	CUgraphExec graph = graph_of(64 * MIB, false, &pointer);

	run(graph);
	charged("launched", 64 * MIB);
	usable("a graph's memory", pointer, 64 * MIB);
	expect("a second launch", cuGraphLaunch(graph, stream), CUDA_ERROR_INVALID_VALUE);
	charged("after that failed", 64 * MIB);
	trim("trimmed while allocated", 64 * MIB);
	OK(cuMemFreeAsync(pointer, stream));
	OK(cuStreamSynchronize(stream));
	charged("freed in the stream", 64 * MIB);
	trim("trimmed", 0);
	run(graph);
	charged("launched again", 64 * MIB);
	OK(cuGraphExecDestroy(graph));
	OK(cuMemFree_v2(pointer));
	trim("freed after the graph's end, and trimmed", 0);
	report("64 MiB stay charged until they are freed and trimmed");
}

static void outside_beyond(void)
{
	CUdeviceptr pointer, other;
	size_t bytes = part(0.6);
	CUgraphExec a = graph_of(bytes, false, &pointer);
	CUgraphExec b = graph_of(bytes, true, &other);

	run(a);
	OUT_OF_MEMORY("a second graph of that size", cuGraphLaunch(b, stream));
	OK(cuStreamSynchronize(stream));
	charged("after a refusal", (long long)bytes);
	OK(cuMemFree_v2(pointer));
	run(b);
	OK(cuGraphExecDestroy(a));
	OK(cuGraphExecDestroy(b));
	trim("at the end", 0);
	report("%zu MiB left allocated: a graph of that size is refused until they are freed",
	       bytes / MIB);
}

static void shared_within(void)
{
	CUdeviceptr pointer;
	CUgraphExec a = graph_of(96 * MIB, true, &pointer);
	CUgraphExec b = graph_of(64 * MIB, true, &pointer);

	run(a);
	charged("a graph of 96 MiB", 96 * MIB);
	OK(cuGraphLaunch(b, stream));
	run(a);
	charged("another of 64 in the same memory", 96 * MIB);
	OK(cuGraphExecDestroy(a));
	OK(cuGraphExecDestroy(b));
	trim("trimmed", 0);
	report("graphs of 96 and 64 MiB charge 96");
}

/* Both do not fit at once, but one after the other they do. */
static void shared_beyond(void)
{
	CUdeviceptr pointer;
	size_t bytes = part(0.6);
	CUgraphExec a = graph_of(bytes, true, &pointer);
	CUgraphExec b = graph_of(bytes, true, &pointer);
	CUgraphExec large = graph_of(2 * bytes, true, &pointer);

	run(a);
	run(b);
	charged("two graphs in the same memory", (long long)bytes);
	OUT_OF_MEMORY("one twice as large", cuGraphLaunch(large, stream));
	OK(cuStreamSynchronize(stream));
	run(a);
	charged("the first again", (long long)bytes);
	OK(cuGraphExecDestroy(a));
	OK(cuGraphExecDestroy(b));
	OK(cuGraphExecDestroy(large));
	trim("trimmed", 0);
	report("two graphs of %zu MiB are granted in the same memory, one of %zu is refused",
	       bytes / MIB, 2 * bytes / MIB);
}

static void trim_within(void)
{
	CUdeviceptr pointer;
	CUgraphExec graph = graph_of(1, true, &pointer);

	trim("trimmed before any launch", 0);
	OK(cuGraphUpload(graph, stream));
	charged("a byte", 32 * MIB);
	trim("trimmed after the upload", 0);
	run(graph);
	charged("launched", 32 * MIB);
	OK(cuGraphExecDestroy(graph));
	OK(cuDeviceGraphMemTrim(0));
	trim("trimmed twice", 0);
	report("a byte charges 32 MiB, and 0 when it is trimmed");
}

/* Cached graph memory is released for another request. */
static void trim_beyond(void)
{
	CUdeviceptr pointer = 0, more;
	size_t bytes = part(0.6);
	CUgraphExec graph = graph_of(bytes, true, &pointer);

	run(graph);
	charged("kept for graphs", (long long)bytes);
	OK(cuMemAlloc_v2(&pointer, bytes));
	charged("linear memory in its place", (long long)bytes);
	OUT_OF_MEMORY("the graph beside it", cuGraphLaunch(graph, stream));
	OUT_OF_MEMORY("as much again", cuMemAlloc_v2(&more, bytes));
	OK(cuMemFree_v2(pointer));
	run(graph);
	OK(cuGraphExecDestroy(graph));
	trim("at the end", 0);
	report("%zu MiB that graphs kept are released for a larger request", bytes / MIB);
}

/* Captured, and by the functions of per-thread default streams. */
static CUgraph captured_in(int mode, size_t bytes)
{
	CUdeviceptr pointer = 0;
	CUgraph graph = NULL;

	OK(cuStreamBeginCapture_v2(stream, mode));
	OK(cuMemAllocAsync(&pointer, bytes, stream));
	OK(cuMemFreeAsync(pointer, stream));
	OK(cuStreamEndCapture(stream, &graph));
	return graph;
}

static CUgraph captured(size_t bytes)
{
	return captured_in(CU_STREAM_CAPTURE_MODE_RELAXED, bytes);
}

/* The capture modes that most programs use forbid calls that interfere. */
static void captured_strictly(void)
{
	for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
	     mode++)
		OK(cuGraphDestroy(captured_in(mode, 50 * MIB)));
	charged("recorded in every mode", 0);
}

/* Into an existing graph: since CUDA 12.3. */
static void captured_into(CUgraph graph)
{
	CUresult result = cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
	                                              CU_STREAM_CAPTURE_MODE_RELAXED);
	CUgraph same = NULL;

	if (result == CUDA_ERROR_NOT_SUPPORTED)
		return;
	OK(result);
	OK(cuStreamEndCapture(stream, &same));
	if (same != graph)
		failed("it was recorded into another graph");
}

/* Capture functions of newer drivers, which fail to start. */
static void captured_otherwise(void)
{
	__typeof__(&cuStreamBeginRecaptureToGraph) again = OPTIONAL(cuStreamBeginRecaptureToGraph);
	__typeof__(&cuStreamBeginCaptureToCig) begin = OPTIONAL(cuStreamBeginCaptureToCig);
	__typeof__(&cuStreamEndCaptureToCig) end = OPTIONAL(cuStreamEndCaptureToCig);

	if ((again && again(stream, 99, NULL, NULL, NULL) == CUDA_SUCCESS) ||
	    (begin && begin(stream, NULL) == CUDA_SUCCESS) || (end && end(stream) == CUDA_SUCCESS))
		failed("a recording of nothing began or ended");
}

static void captured_within(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec executable = NULL;
	CUgraph graph;

	captured_strictly();
	graph = captured(50 * MIB);
	captured_into(graph);
	captured_otherwise();
	charged("50 MiB recorded", 0);
	parameters.hUploadStream = stream;
	OK(cuGraphInstantiateWithParams(&executable, graph, &parameters));
	charged("instantiated and uploaded", 64 * MIB);
	OK(cuGraphLaunch_ptsz(executable, stream));
	OK(cuStreamSynchronize(stream));
	charged("launched", 64 * MIB);
	OK(cuGraphExecDestroy(executable));
	trim("trimmed", 0);
	OK(cuGraphInstantiateWithParams_ptsz(&executable, graph, &parameters));
	charged("instantiated and uploaded anew", 64 * MIB);
	OK(cuGraphUpload_ptsz(executable, stream));
	OK(cuStreamSynchronize(stream));
	charged("uploaded again", 64 * MIB);
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	trim("at the end", 0);
	report("50 MiB recorded charge 0, uploaded 64");
}

static void captured_beyond(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
	CUgraphExec executable = NULL;
	size_t room = left();
	CUgraph graph = captured(room + 64 * MIB);

	parameters.hUploadStream = stream;
	OUT_OF_MEMORY("to instantiate and upload it",
	              cuGraphInstantiateWithParams(&executable, graph, &parameters));
	charged("after that", 0);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OUT_OF_MEMORY("to launch it", cuGraphLaunch_ptsz(executable, stream));
	OK(cuStreamSynchronize(stream));
	charged("after a refused launch", 0);
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	graph = captured(64 * MIB);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	run(executable);
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	trim("at the end", 0);
	report("%zu MiB recorded are refused at upload and at launch, 64 granted", room / MIB + 64);
}

static void plain(CUdeviceptr pointer, size_t bytes, long long expected)
{
	CUDA_MEMSET_NODE_PARAMS parameters = {
	    .dst = pointer, .value = 7, .elementSize = 1, .width = bytes, .height = 1};
	CUgraphExec executable;
	CUgraphNode node, error;
	CUgraph graph = NULL;
	char log[64];

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &parameters, own_context));
	for (unsigned way = 0; way < 3; way++) {
		executable = NULL;
		if (way == 0)
			OK(cuGraphInstantiate(&executable, graph, &error, log, sizeof(log)));
		else if (way == 1)
			OK(cuGraphInstantiate_v2(&executable, graph, &error, log, sizeof(log)));
		else
			OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
		OK(cuGraphUpload(executable, stream));
		for (unsigned i = 0; i < 100; i++)
			OK(cuGraphLaunch(executable, stream));
		OK(cuStreamSynchronize(stream));
		charged("launched", expected);
		OK(cuGraphExecDestroy(executable));
	}
	OK(cuGraphDestroy(graph));
	charged("destroyed", expected);
}

static void plain_within(void)
{
	CUdeviceptr pointer = 0;

	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	plain(pointer, 64 * MIB, 64 * MIB);
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("300 launches charge nothing");
}

static void plain_beyond(void)
{
	CUdeviceptr more;
	size_t room = left();
	CUdeviceptr pointer = fill(0);

	plain(pointer, 64 * MIB, whole_blocks(room));
	OUT_OF_MEMORY("32 MiB more", cuMemAlloc_v2(&more, 32 * MIB));
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	report("300 launches are granted in a full slice");
}

const struct row graph_rows[] = {
    {"graph",
     "cuGraphInstantiateWithFlags cuGraphUpload cuGraphLaunch cuGraphExecDestroy "
     "cuDeviceGraphMemTrim",
     explicit_within, .beyond = explicit_beyond, .begin = begin_graphs},
    {"graph-outside", "cuGraphLaunch cuMemFreeAsync cuMemFree_v2 cuDeviceGraphMemTrim",
     outside_within, .beyond = outside_beyond, .begin = begin_graphs},
    {"graph-shared", "cuGraphLaunch cuGraphExecDestroy cuDeviceGraphMemTrim", shared_within,
     .beyond = shared_beyond, .begin = begin_graphs},
    {"graph-trim", "cuGraphUpload cuGraphLaunch cuDeviceGraphMemTrim", trim_within,
     .beyond = trim_beyond, .begin = begin_graphs},
    {"graph-captured",
     "cuStreamBeginCapture_v2 cuStreamBeginCaptureToGraph cuStreamEndCapture "
     "cuStreamBeginRecaptureToGraph cuStreamBeginCaptureToCig cuStreamEndCaptureToCig "
     "cuMemAllocAsync cuMemFreeAsync cuGraphInstantiateWithParams "
     "cuGraphInstantiateWithParams_ptsz cuGraphUpload_ptsz cuGraphLaunch_ptsz",
     captured_within, .beyond = captured_beyond, .begin = begin_graphs},
    {"graph-plain",
     "cuGraphInstantiate cuGraphInstantiate_v2 cuGraphInstantiateWithFlags "
     "cuGraphUpload cuGraphLaunch cuGraphExecDestroy",
     plain_within, .beyond = plain_beyond, .begin = begin_graphs},
    {0}};
