/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generated SEED STEPS THREADS PROCESSES [DEEDS]: threads of several processes allocate and free
 * memory of device 0 at random, in every way of enum deed; DEEDS is a sum of powers of two. Each 32
 * steps all threads pause with nothing in flight. At a pause the first process prints "pause" and
 * its number, and waits for a line. After the last pause all is freed. Refusals are expected;
 * another error is printed, and the exit status is 1.
 */
#define _GNU_SOURCE
#include "code.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define STEPS_TO_PAUSE 32
#define MOST_THREADS 64
#define HELD 16 /* objects of each thread */
#define SHARED 64
#define SHARED_FILE 42

typedef struct CUevent_st *CUevent;

CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);

enum deed {
	SMALL,
	LARGE,
	PITCH,
	MANAGED,
	ASYNC,
	POOL,
	PHYSICAL,
	MAPPED,
	ARRAY,
	MIPMAPPED,
	GRAPH,
	CAPTURE,
	MODULE,
	STREAM,
	EVENTS,
	CONTEXT,
	EXPORT,
	LEND,
	BORROW,
	STACK,
	TRIM,
	DEEDS
};

#define EVENTS_AT_ONCE 64

struct thing {
	enum deed deed;
	bool there;
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	size_t bytes;
	CUstream stream;
	CUmemoryPool pool;
	CUarray array;
	CUmipmappedArray mipmapped;
	CUmodule module;
	CUcontext context;
	CUgraphExec graph;
	CUevent events[EVENTS_AT_ONCE];
	int lent; /* place of its handle, for others to open; -1 for none */
};

static struct shared {
	pthread_barrier_t all; /* threads of all processes */
	_Atomic int wrong;
	_Atomic uint64_t taken, refused;
	struct {
		_Atomic int there;
		CUipcMemHandle handle;
	} lent[SHARED];
} * shared;

static int steps, processes, me;
static unsigned long deeds;
static CUcontext primary;

struct worker {
	unsigned int seed;
	bool first;
	CUstream stream;
	struct thing things[HELD];
};

static bool done(CUresult result, const char *what, const struct thing *thing)
{
	if (result == CUDA_SUCCESS)
		return true;
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		shared->refused++;
	} else {
		printf("%s of %d: error %d\n", what, (int)thing->deed, (int)result);
		shared->wrong = 1;
	}
	return false;
}

static size_t up_to(struct worker *w, size_t most)
{
	return (size_t)rand_r(&w->seed) % most + 1;
}

static const CUmemAllocationProp device_memory = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = 1, /* a descriptor */
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemPoolProps device_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static CUresult map(struct thing *t)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3};
	CUresult result = cuMemAddressReserve(&t->pointer, t->bytes, 0, 0, 0);

	if (result == CUDA_SUCCESS && (result = cuMemMap(t->pointer, t->bytes, 0, t->handle, 0)))
		(void)cuMemAddressFree(t->pointer, t->bytes);
	if (result == CUDA_SUCCESS)
		(void)cuMemSetAccess(t->pointer, t->bytes, &access, 1);
	if (result != CUDA_SUCCESS)
		(void)cuMemRelease(t->handle);
	return result;
}

static CUresult make_graph(struct worker *w, struct thing *t)
{
	CUDA_MEM_ALLOC_NODE_PARAMS node = {.poolProps = device_pool,
	                                   .bytesize = up_to(w, 64 * MIB)};
	CUgraphNode allocated, freed;
	CUgraph graph;
	CUresult result = cuGraphCreate(&graph, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuGraphAddMemAllocNode(&allocated, graph, NULL, 0, &node);
	if (result == CUDA_SUCCESS)
		result = cuGraphAddMemFreeNode(&freed, graph, &allocated, 1, node.dptr);
	if (result == CUDA_SUCCESS)
		result = cuGraphInstantiateWithFlags(&t->graph, graph, 0);
	(void)cuGraphDestroy(graph);
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
		result = cuGraphLaunch(t->graph, w->stream);
		if (result != CUDA_SUCCESS)
			(void)cuGraphExecDestroy(t->graph);
	}
	return result;
}

static CUresult capture(struct worker *w, struct thing *t)
{
	CUdeviceptr pointer;
	CUgraph graph;
	CUresult result = cuStreamBeginCapture_v2(w->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	CUresult ended;

	if (result != CUDA_SUCCESS)
		return result;
	result = cuMemAllocAsync(&pointer, up_to(w, 32 * MIB), w->stream);
	if (result == CUDA_SUCCESS)
		result = cuMemFreeAsync(pointer, w->stream);
	ended = cuStreamEndCapture(w->stream, &graph);
	if (ended != CUDA_SUCCESS)
		return result ? result : ended;
	if (result == CUDA_SUCCESS)
		result = cuGraphInstantiateWithFlags(&t->graph, graph, 0);
	(void)cuGraphDestroy(graph);
	if (result == CUDA_SUCCESS && (result = cuGraphLaunch(t->graph, w->stream)))
		(void)cuGraphExecDestroy(t->graph);
	return result;
}

static CUresult load(struct worker *w, struct thing *t)
{
	static const size_t frames[] = {512, 0};
	char *text = module_text(up_to(w, 8 * MIB), frames);
	CUfunction function;
	CUresult result = cuModuleLoadData(&t->module, text);

	free(text);
	if (result == CUDA_SUCCESS &&
	    cuModuleGetFunction(&function, t->module, "frame512") == CUDA_SUCCESS)
		result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, w->stream, parameters, NULL);
	if (result != CUDA_SUCCESS && t->module)
		(void)cuModuleUnload(t->module);
	return result;
}

static CUresult make_events(struct thing *t)
{
	CUresult result = CUDA_SUCCESS;
	int count = 0;

	while (count < EVENTS_AT_ONCE && !(result = cuEventCreate(&t->events[count], 0)))
		count++;
	while (result != CUDA_SUCCESS && count)
		(void)cuEventDestroy_v2(t->events[--count]);
	return result;
}

/* Only the import holds the memory. */
static CUresult export_and_import(struct thing *t)
{
	CUmemGenericAllocationHandle first;
	int file = -1;
	CUresult result = cuMemCreate(&first, t->bytes, &device_memory, 0);

	if (result != CUDA_SUCCESS)
		return result;
	result = cuMemExportToShareableHandle(&file, first, 1, 0);
	if (result == CUDA_SUCCESS)
		result = cuMemImportFromShareableHandle(&t->handle, (void *)(intptr_t)file, 1);
	if (file >= 0)
		close(file);
	(void)cuMemRelease(first);
	return result;
}

static CUresult lend(struct worker *w, struct thing *t)
{
	CUresult result = cuMemAlloc_v2(&t->pointer, t->bytes);

	t->lent = -1;
	for (int i = 0; result == CUDA_SUCCESS && i < 4 && t->lent < 0; i++) {
		int place = rand_r(&w->seed) % SHARED, none = 0;

		if (atomic_compare_exchange_strong(&shared->lent[place].there, &none, 1)) {
			if (cuIpcGetMemHandle(&shared->lent[place].handle, t->pointer) == 0) {
				shared->lent[place].there = 2 + me;
				t->lent = place;
			} else {
				shared->lent[place].there = 0;
			}
		}
	}
	return result;
}

/* Open another process's memory, which may be freed by now. */
static bool borrow(struct worker *w, struct thing *t)
{
	int place = rand_r(&w->seed) % SHARED, there = shared->lent[place].there;
	CUipcMemHandle handle = shared->lent[place].handle;

	return there >= 2 && there != 2 + me && shared->lent[place].there == there &&
	       cuIpcOpenMemHandle_v2(&t->pointer, handle, 1) == CUDA_SUCCESS;
}

static void take(struct worker *w, struct thing *t)
{
	CUDA_ARRAY_DESCRIPTOR square = {.Width = up_to(w, 2048),
	                                .Height = up_to(w, 1024),
	                                .Format = CU_AD_FORMAT_FLOAT,
	                                .NumChannels = 1};
	CUDA_ARRAY3D_DESCRIPTOR levels = {.Width = 1024,
	                                  .Height = up_to(w, 1024),
	                                  .Format = CU_AD_FORMAT_FLOAT,
	                                  .NumChannels = 1};
	CUmemoryPool pool;
	CUresult result = CUDA_SUCCESS;
	size_t pitch;

	memset(t, 0, sizeof(*t));
	do
		t->deed = (enum deed)(rand_r(&w->seed) % DEEDS);
	while (!(deeds >> t->deed & 1));
	t->stream = w->stream;
	t->bytes = up_to(w, 24) * 2 * MIB;
	t->there = true;
	switch (t->deed) {
	case SMALL:
		result = cuMemAlloc_v2(&t->pointer, up_to(w, MIB));
		break;
	case LARGE:
		result = cuMemAlloc_v2(&t->pointer, MIB + up_to(w, 96 * MIB));
		break;
	case PITCH:
		result = cuMemAllocPitch_v2(&t->pointer, &pitch, up_to(w, 8192), up_to(w, 4096), 4);
		break;
	case MANAGED:
		result = cuMemAllocManaged(&t->pointer, up_to(w, 32 * MIB), 1);
		if (result == CUDA_SUCCESS)
			(void)cuMemsetD8_v2(t->pointer, 1, 1);
		break;
	case ASYNC:
		result = cuMemAllocAsync(&t->pointer, up_to(w, 64 * MIB), w->stream);
		break;
	case POOL:
		result = cuMemPoolCreate(&t->pool, &device_pool);
		if (result == CUDA_SUCCESS &&
		    (result = cuMemAllocFromPoolAsync(&t->pointer, up_to(w, 64 * MIB), t->pool,
		                                      w->stream)))
			(void)cuMemPoolDestroy(t->pool);
		break;
	case PHYSICAL:
		result = cuMemCreate(&t->handle, t->bytes, &device_memory, 0);
		break;
	case MAPPED:
		result = cuMemCreate(&t->handle, t->bytes, &device_memory, 0);
		if (result == CUDA_SUCCESS)
			result = map(t);
		break;
	case ARRAY:
		result = cuArrayCreate_v2(&t->array, &square);
		break;
	case MIPMAPPED:
		result = cuMipmappedArrayCreate(&t->mipmapped, &levels, 4);
		break;
	case GRAPH:
		result = make_graph(w, t);
		break;
	case CAPTURE:
		result = capture(w, t);
		break;
	case MODULE:
		result = load(w, t);
		break;
	case STREAM:
		result = cuStreamCreate(&t->stream, 1);
		break;
	case EVENTS:
		result = make_events(t);
		break;
	case CONTEXT:
		result = cuCtxCreate_v2(&t->context, 0, 0);
		if (result == CUDA_SUCCESS) {
			CUdeviceptr pointer; /* freed with the context */

			(void)cuMemAlloc_v2(&pointer, 4 * MIB);
			(void)cuCtxSetCurrent(primary);
		}
		break;
	case EXPORT:
		result = export_and_import(t);
		break;
	case LEND:
		result = lend(w, t);
		break;
	case BORROW:
		t->there = borrow(w, t);
		break;
	case STACK:
		result = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 * up_to(w, 4));
		t->there = false;
		break;
	case TRIM:
		t->there = false;
		(void)cuDeviceGraphMemTrim(0);
		if (cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS)
			result = cuMemPoolTrimTo(pool, 0);
		break;
	case DEEDS:
		break;
	}
	if (!done(result, "taking", t))
		t->there = false;
	else
		shared->taken++;
}

static void give(struct worker *w, struct thing *t)
{
	CUresult result = CUDA_SUCCESS;

	switch (t->deed) {
	case ASYNC:
		result = cuMemFreeAsync(t->pointer, t->stream);
		break;
	case POOL:
		result = cuMemFreeAsync(t->pointer, t->stream);
		if (result == CUDA_SUCCESS)
			result = cuMemPoolDestroy(t->pool);
		break;
	case MAPPED:
		result = cuMemUnmap(t->pointer, t->bytes);
		if (result == CUDA_SUCCESS)
			result = cuMemAddressFree(t->pointer, t->bytes);
		if (result == CUDA_SUCCESS)
			result = cuMemRelease(t->handle);
		break;
	case PHYSICAL:
	case EXPORT:
		result = cuMemRelease(t->handle);
		break;
	case ARRAY:
		result = cuArrayDestroy(t->array);
		break;
	case MIPMAPPED:
		result = cuMipmappedArrayDestroy(t->mipmapped);
		break;
	case GRAPH:
	case CAPTURE:
		result = cuGraphExecDestroy(t->graph);
		break;
	case MODULE:
		(void)cuStreamSynchronize(w->stream);
		result = cuModuleUnload(t->module);
		break;
	case STREAM:
		result = cuStreamDestroy_v2(t->stream);
		break;
	case EVENTS:
		for (int i = 0; i < EVENTS_AT_ONCE && result == CUDA_SUCCESS; i++)
			result = cuEventDestroy_v2(t->events[i]);
		break;
	case CONTEXT:
		result = cuCtxDestroy_v2(t->context);
		break;
	case BORROW:
		result = cuIpcCloseMemHandle(t->pointer);
		break;
	case LEND:
		if (t->lent >= 0)
			shared->lent[t->lent].there = 0;
		result = cuMemFree_v2(t->pointer);
		break;
	default:
		result = cuMemFree_v2(t->pointer);
		break;
	}
	if (result != CUDA_SUCCESS) {
		printf("releasing of %d: error %d\n", (int)t->deed, (int)result);
		shared->wrong = 1;
	}
	t->there = false;
}

/* Wait until all threads have nothing in flight. The first one reports it, and waits for a line. */
static void pause_all(struct worker *w, const char *what, int number)
{
	char line[16];

	(void)cuStreamSynchronize(w->stream);
	pthread_barrier_wait(&shared->all);
	if (w->first)
		(void)cuCtxSynchronize(); /* no thread is capturing, which this would end */
	pthread_barrier_wait(&shared->all);
	if (w->first && me == 0) {
		printf("%s %d\n", what, number);
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			shared->wrong = 1;
	}
	pthread_barrier_wait(&shared->all);
}

static void give_all(struct worker *w)
{
	for (int i = 0; i < HELD; i++) {
		if (w->things[i].there)
			give(w, &w->things[i]);
	}
}

static void *work(void *argument)
{
	struct worker *w = argument;

	if (cuCtxSetCurrent(primary) || cuStreamCreate(&w->stream, 1)) {
		printf("a thread could not begin\n");
		exit(1);
	}
	pthread_barrier_wait(&shared->all); /* all have their contexts */
	for (int step = 1; step <= steps; step++) {
		struct thing *t = &w->things[rand_r(&w->seed) % HELD];

		if (t->there)
			give(w, t);
		else
			take(w, t);
		if (step % STEPS_TO_PAUSE == 0)
			pause_all(w, "pause", step / STEPS_TO_PAUSE);
	}
	give_all(w);
	(void)cuStreamDestroy_v2(w->stream);
	w->stream = NULL;
	if (w->first)
		(void)cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024);
	pause_all(w, "released", 0);
	if (w->first)
		(void)cuDeviceGraphMemTrim(0);
	pause_all(w, "end", 0);
	return NULL;
}

static bool start(char **argv, int index)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", index);
	if (fork() != 0)
		return true;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], number,
	      (char *)NULL);
	_exit(127);
}

static bool make_shared(int count)
{
	pthread_barrierattr_t attributes;
	int file = memfd_create("generated", 0);

	if (file < 0 || dup2(file, SHARED_FILE) != SHARED_FILE ||
	    ftruncate(SHARED_FILE, sizeof(*shared)) != 0)
		return false;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FILE, 0);
	return shared != MAP_FAILED && !pthread_barrierattr_init(&attributes) &&
	       !pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) &&
	       !pthread_barrier_init(&shared->all, &attributes, (unsigned int)count);
}

int main(int argc, char **argv)
{
	unsigned int seed;
	int threads, status;
	static struct worker workers[MOST_THREADS];
	static pthread_t ids[MOST_THREADS];

	if (argc < 6)
		return 64;
	seed = (unsigned int)strtoul(argv[1], NULL, 10);
	steps = atoi(argv[2]);
	threads = atoi(argv[3]);
	processes = atoi(argv[4]);
	deeds = strtoul(argv[5], NULL, 10) & ((1ul << DEEDS) - 1);
	me = argc > 6 ? atoi(argv[6]) : 0;
	if (threads < 1 || threads > MOST_THREADS || processes < 1 || !deeds)
		return 64;
	if (me)
		shared =
		    mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FILE, 0);
	else if (!make_shared(threads * processes))
		return 1;
	for (int i = 1; me == 0 && i < processes; i++) {
		if (!start(argv, i))
			return 1;
	}
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&primary, 0)) {
		printf("process %d could not begin\n", me);
		return 1;
	}
	for (int i = 0; i < threads; i++) {
		workers[i].seed = seed * 1000003 + (unsigned int)(me * 64 + i);
		workers[i].first = i == 0;
		if (pthread_create(&ids[i], NULL, work, &workers[i]))
			return 1;
	}
	/* Without an ended process the others would wait at the barrier. */
	while (me == 0 && wait(&status) > 0) {
		if (status) {
			printf("a process could not go on: status %#x\n", (unsigned int)status);
			exit(1);
		}
	}
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	if (me == 0)
		printf("%llu taken, %llu refused\n", (unsigned long long)shared->taken,
		       (unsigned long long)shared->refused);
	return shared->wrong;
}
