/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of contexts and streams. agrees() checks that the charge covers what NVML lists;
 * agrees_late() also waits until it is no more than that. */
#include "rows.h"

#include <unistd.h>

#define CONTEXT_LEAST (16 * MIB)

static size_t cost_since(size_t before, const char *what)
{
	size_t now = left();

	if (now + CONTEXT_LEAST > before)
		failed("%s charges only %lld bytes", what, (long long)before - (long long)now);
	return before > now ? before - now : 0;
}

static CUresult make_context(int version, CUcontext *context)
{
	switch (version) {
	case 1:
		return cuCtxCreate(context, 0, 0);
	case 2:
		return cuCtxCreate_v2(context, 0, 0);
	case 3:
		return cuCtxCreate_v3(context, NULL, 0, 0, 0);
	default:
		return cuCtxCreate_v4(context, NULL, 0, 0);
	}
}

static void detach_from(__typeof__(&cuCtxDetach) detach, CUcontext context)
{
	OK(cuCtxSetCurrent(context));
	OK(detach(context));
}

static void contexts_within(void)
{
	__typeof__(&cuCtxDetach) detach = OPTIONAL(cuCtxDetach);
	CUcontext context;
	size_t before, cost = 0;
	CUresult result;

	for (int version = 1; version <= 4; version++) {
		context = NULL;
		before = left();
		result = make_context(version, &context);
		/* The oldest kind lies below 4 GiB, where a primary context leaves no room (driver
		 * observation, H100, 580.159.04). */
		if (version == 1 && result == CUDA_ERROR_OUT_OF_MEMORY) {
			charged("a context of the oldest kind that the driver refused", 0);
			continue;
		}
		expect("cuCtxCreate", result, CUDA_SUCCESS);
		/* Newer calls may fail in a context of the oldest kind. */
		OK(cuCtxSetCurrent(own_context));
		cost = cost_since(before, "a second context");
		if (version == 1)
			OK(cuCtxDestroy(context));
		else if (version == 2 && detach)
			detach_from(detach, context);
		else
			OK(cuCtxDestroy_v2(context));
		OK(cuCtxSetCurrent(own_context));
		charged("a second context destroyed", 0);
	}
	report("a second context charges %zu MiB by each version, and 0 when it is gone",
	       cost / MIB);
}

static void contexts_beyond(void)
{
	CUcontext context = NULL;
	size_t room = left();
	CUdeviceptr pointer = fill(8 * MIB);
	size_t full = room - left();

	for (int version = 1; version <= 4; version++) {
		OUT_OF_MEMORY("a second context in a full slice", make_context(version, &context));
		OK(cuCtxSetCurrent(own_context));
		charged("after a refusal", (long long)full);
	}
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	OK(make_context(2, &context));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("at the end", 0);
	report("with 8 MiB free a second context is refused by each version, later granted");
}

/* A context for the graphics of a window; tests have no window. */
static void graphics_within(void)
{
	__typeof__(&cuGLCtxCreate) v1 = OPTIONAL(cuGLCtxCreate);
	__typeof__(&cuGLCtxCreate_v2) v2 = OPTIONAL(cuGLCtxCreate_v2);
	CUcontext context = NULL;

	if ((v1 && v1(&context, 0, 0) == CUDA_SUCCESS) ||
	    (v2 && v2(&context, 0, 0) == CUDA_SUCCESS))
		OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("no context of OpenGL", 0);
	report(v2 ? "without OpenGL it fails and charges nothing" : "this driver has none");
}

static void graphics_beyond(void)
{
	__typeof__(&cuGLCtxCreate_v2) make = OPTIONAL(cuGLCtxCreate_v2);
	CUcontext context = NULL;
	CUdeviceptr pointer = fill(8 * MIB);

	if (make)
		OUT_OF_MEMORY("a context of OpenGL in a full slice", make(&context, 0, 0));
	OK(cuCtxSetCurrent(own_context));
	OK(cuMemFree_v2(pointer));
	charged("at the end", 0);
	report(make ? "with 8 MiB free it is refused" : "this driver has none");
}

/* Memory of each kind that is freed with its context: charges 64 + 2 + 64 + 64 MiB. */
#define LIVE (194 * (long long)MIB)

static void allocate_live(void)
{
	CUDA_ARRAY_DESCRIPTOR plane = {
	    .Width = 4096, .Height = 4096, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUdeviceptr pointer;
	CUarray array;

	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	OK(cuMemAlloc_v2(&pointer, 512 * KIB));
	OK(cuMemAllocManaged(&pointer, 64 * MIB, 1));
	OK(cuArrayCreate_v2(&array, &plane));
}

static void destroy_within(void)
{
	CUcontext context = NULL;
	size_t cost;
	size_t before = left();

	OK(cuCtxCreate_v2(&context, 0, 0));
	cost = cost_since(before, "a second context");
	allocate_live();
	charged("what lives in a second context", (long long)cost + LIVE);
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("destroyed", 0);
	report("%zu MiB of a context and %lld that live in it go with it", cost / MIB,
	       LIVE / (long long)MIB);
}

static void destroy_beyond(void)
{
	CUdeviceptr pointer = 0;
	CUcontext context = NULL;

	OK(cuCtxCreate_v2(&context, 0, 0));
	(void)fill(0);
	OUT_OF_MEMORY("32 MiB more", cuMemAlloc_v2(&pointer, 32 * MIB));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("destroyed", 0);
	OK(cuMemAlloc_v2(&pointer, part(0.9)));
	OK(cuMemFree_v2(pointer));
	charged("at the end", 0);
	report("a slice that a context filled is empty again without it");
}

static void primary_within(void)
{
	CUcontext primary = NULL;
	size_t cost;
	size_t before = left();

	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	cost = cost_since(before, "the primary context");
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	charged("retained twice", (long long)cost);
	OK(cuCtxSetCurrent(primary));
	allocate_live();
	OK(cuCtxSetCurrent(own_context));
	charged("what lives in it", (long long)cost + LIVE);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	charged("released once", (long long)cost + LIVE);
	OK(cuDevicePrimaryCtxRelease(0));
	charged("released twice", 0);
	for (int version = 1; version <= 2; version++) {
		OK(cuDevicePrimaryCtxRetain(&primary, 0));
		OK(cuCtxSetCurrent(primary));
		allocate_live();
		OK(cuCtxSetCurrent(own_context));
		charged("retained anew", (long long)cost + LIVE);
		OK(version == 1 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxReset_v2(0));
		charged("reset", 0);
		(void)cuDevicePrimaryCtxRelease_v2(0);
	}
	report("%zu MiB of the primary context and %lld that live in it go by release and reset",
	       cost / MIB, LIVE / (long long)MIB);
}

static void primary_beyond(void)
{
	CUcontext primary = NULL;
	CUdeviceptr pointer = fill(8 * MIB);

	OUT_OF_MEMORY("the primary context in a full slice", cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	charged("at the end", 0);
	report("with 8 MiB free it is refused, later granted");
}

#define RESOURCE_OF_MULTIPROCESSORS 1
#define GREEN_DEFAULT_STREAM 1
#define STREAM_NON_BLOCKING 1

/* A green context takes 4 to 6 MiB of its own, which only driver truth sees. */
#define GREEN_SLACK (16 * (long long)MIB)

static CUresult make_green(CUgreenCtx *green)
{
	CUdevResource whole = {0}, groups[2] = {0}, rest = {0};
	CUdevResourceDesc description = NULL;
	unsigned int count = 2;

	OK(cuDeviceGetDevResource(0, &whole, RESOURCE_OF_MULTIPROCESSORS));
	OK(cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0, 16));
	OK(cuDevResourceGenerateDesc(&description, &groups[0], 1));
	return cuGreenCtxCreate(green, description, 0, GREEN_DEFAULT_STREAM);
}

static void green_within(void)
{
	CUcontext context = NULL;
	CUgreenCtx a = NULL, b = NULL;
	CUstream stream = NULL;
	CUdeviceptr pointer = 0;
	long long cost;
	size_t before = left();

	OK(make_green(&a));
	cost = (long long)cost_since(before, "a green context");
	OK(make_green(&b));
	charged_about("a second one", cost, GREEN_SLACK);
	OK(cuCtxFromGreenCtx(&context, a));
	OK(cuCtxSetCurrent(context));
	if (OPTIONAL(cuGreenCtxStreamCreate)) {
		OK(OPTIONAL(cuGreenCtxStreamCreate)(&stream, a, STREAM_NON_BLOCKING, 0));
		charged_about("a stream in the first", cost, GREEN_SLACK);
		OK(cuStreamDestroy_v2(stream));
	}
	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	usable("memory of a green context", pointer, 64 * MIB);
	OK(cuCtxSetCurrent(own_context));
	charged_about("64 MiB in the first", cost + 64 * (long long)MIB, GREEN_SLACK);
	OK(cuGreenCtxDestroy(a));
	charged_about("the first destroyed", cost + 64 * (long long)MIB, GREEN_SLACK);
	OK(cuGreenCtxDestroy(b));
	charged_about("both destroyed", 0, GREEN_SLACK);
	report("two charge the primary context's %lld MiB; 64 allocated in one stay until both are"
	       " destroyed",
	       cost / (long long)MIB);
}

static void green_beyond(void)
{
	CUgreenCtx green = NULL;
	CUdeviceptr pointer = fill(8 * MIB);

	OUT_OF_MEMORY("a green context in a full slice", make_green(&green));
	OK(cuMemFree_v2(pointer));
	charged("freed", 0);
	OK(make_green(&green));
	OK(cuGreenCtxDestroy(green));
	charged_about("at the end", 0, GREEN_SLACK);
	report("with 8 MiB free it is refused, later granted");
}

static void limit_within(void)
{
	CUcontext context = NULL;
	size_t cost, value = 0;
	size_t before = left();

	OK(cuCtxCreate_v2(&context, 0, 0));
	cost = cost_since(before, "a second context");
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MIB));
	charged("a heap of 256 MiB", (long long)cost + 256 * (long long)MIB);
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MIB));
	charged("and a buffer for printf", (long long)cost + 256 * (long long)MIB);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
	charged("a heap of 64 MiB", (long long)cost + 64 * (long long)MIB);
	OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
	if (value != 64 * MIB)
		failed("the heap is of %zu bytes", value);
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("the context destroyed", 0);
	report("a heap is charged when it is set, and goes with its context");
}

static void limit_beyond(void)
{
	CUcontext context = NULL;
	size_t before, after;

	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuCtxGetLimit(&before, CU_LIMIT_MALLOC_HEAP_SIZE));
	OUT_OF_MEMORY("a heap that does not fit",
	              cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, left() + 64 * MIB));
	OK(cuCtxGetLimit(&after, CU_LIMIT_MALLOC_HEAP_SIZE));
	if (before != after)
		failed("the heap was of %zu bytes, and is of %zu", before, after);
	OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
	OK(cuCtxDestroy_v2(context));
	OK(cuCtxSetCurrent(own_context));
	charged("at the end", 0);
	report("64 MiB more than are free are refused, and the heap stays; 64 MiB are granted");
}

/* Streams take memory that depends on the driver, and stays with their context. */
#define STREAMS 2000
#define STREAMS_SLACK (16 * (long long)MIB)

static CUstream streams[STREAMS];

static CUresult make_stream(unsigned i)
{
	return i % 2 ? cuStreamCreateWithPriority(&streams[i], 1, 0)
	             : cuStreamCreate(&streams[i], 1);
}

static void streams_within(void)
{
	CUdeviceptr pointer = 0;

	for (unsigned i = 0; i < STREAMS; i++)
		expect("a stream", make_stream(i), CUDA_SUCCESS);
	agrees("2,000 streams", STREAMS_SLACK);
	for (unsigned i = 0; i < STREAMS; i++)
		OK(cuStreamDestroy_v2(streams[i]));
	for (unsigned i = 0; i < STREAMS; i++)
		expect("a stream again", make_stream(i), CUDA_SUCCESS);
	agrees("2,000 again", STREAMS_SLACK);
	OK(cuMemAlloc_v2(&pointer, 64 * MIB));
	agrees_late("and memory", STREAMS_SLACK);
	for (unsigned i = 0; i < STREAMS; i++)
		OK(cuStreamDestroy_v2(streams[i]));
	OK(cuMemFree_v2(pointer));
	agrees_late("destroyed", STREAMS_SLACK);
	report("what 2,000 streams take is charged");
}

static void streams_beyond(void)
{
	CUdeviceptr pointer;
	CUresult result = CUDA_SUCCESS;
	unsigned count = 0;
	size_t held = 0;

	(void)fill(64 * MIB);
	while (count < STREAMS && result == CUDA_SUCCESS) {
		result = make_stream(count);
		count += result == CUDA_SUCCESS;
	}
	OUT_OF_MEMORY("a stream beyond the quota", result);
	if (truth(&held) && held > quota())
		failed("%u streams: %zu bytes are held", count, held);
	agrees_late("streams beyond the quota", STREAMS_SLACK);
	OK(cuStreamDestroy_v2(streams[0]));
	OK(make_stream(0));
	OUT_OF_MEMORY("4 MiB more", cuMemAlloc_v2(&pointer, 4 * MIB));
	report("%u streams in 64 MiB, and none beyond the quota", count);
}

const struct row context_rows[] = {
    {"context-second",
     "cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 "
     "cuCtxDetach",
     contexts_within, .beyond = contexts_beyond},
    {"context-graphics", "cuGLCtxCreate cuGLCtxCreate_v2 cuCtxDestroy_v2", graphics_within,
     .beyond = graphics_beyond},
    {"context-live", "cuCtxCreate_v2 cuCtxDestroy_v2", destroy_within, .beyond = destroy_beyond},
    {"context-primary",
     "cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 "
     "cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2",
     primary_within, .beyond = primary_beyond, .begin = observe},
    {"context-green", "cuGreenCtxCreate cuGreenCtxDestroy cuCtxFromGreenCtx cuGreenCtxStreamCreate",
     green_within, .beyond = green_beyond, .begin = observe},
    {"context-limit", "cuCtxSetLimit", limit_within, .beyond = limit_beyond},
    {"code-streams", "cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2 cuMemAlloc_v2",
     streams_within, .beyond = streams_beyond},
    {0}};
