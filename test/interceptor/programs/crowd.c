/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd async|busy|graph THREADS ROUNDS MIB: in each round the threads allocate MIB at the same
 * instant, from one pool or by launching a graph each. Their sum is within the quota, and so is the
 * memory that the driver reserves. Not for "busy": there streams keep freed memory for a while, and
 * are synchronized only in each fourth round. All is free at the end. Exits 0 if so.
 */
#include "driver.h"

#include "charged.h"

#include <pthread.h>
#include <stdint.h>

#define MOST 64

static CUcontext context;
static pthread_barrier_t barrier;
static int graphs, busy, threads, rounds;
static size_t bytes;
static int64_t live;

/* A thread's size in a round. Every other round has equal sizes, so that some threads find freed
 * memory. */
static size_t size_in(int round, int thread)
{
	return round % 2 ? bytes
	                 : bytes / 2 + (size_t)((thread * 7 + round * 3) % 16) * (bytes / 16);
}

struct taken {
	CUgraph source;
	CUgraphExec graph;
	CUdeviceptr pointer;
	size_t size;
};

static CUresult take(struct taken *t, CUstream stream, int round, int thread)
{
	CUDA_MEM_ALLOC_NODE_PARAMS node = {
	    .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}};
	CUgraphNode added;

	t->size = size_in(round, thread);
	if (!graphs) {
		pthread_barrier_wait(&barrier);
		return cuMemAllocAsync(&t->pointer, t->size, stream);
	}
	node.bytesize = t->size;
	MUST(cuGraphCreate(&t->source, 0));
	MUST(cuGraphAddMemAllocNode(&added, t->source, NULL, 0, &node));
	MUST(cuGraphInstantiateWithFlags(&t->graph, t->source, 0));
	t->pointer = node.dptr;
	pthread_barrier_wait(&barrier);
	return cuGraphLaunch(t->graph, stream);
}

static void *work(void *argument)
{
	int thread = (int)(intptr_t)argument;
	CUstream stream;

	MUST(cuCtxSetCurrent(context));
	MUST(cuStreamCreate(&stream, 1));
	for (int round = 0; round < rounds; round++) {
		struct taken t = {0};
		CUresult result = take(&t, stream, round, thread);

		if (result == CUDA_SUCCESS)
			__atomic_fetch_add(&live, (int64_t)t.size, __ATOMIC_RELAXED);
		else if (result != CUDA_ERROR_OUT_OF_MEMORY)
			must("a request", result);
		pthread_barrier_wait(&barrier); /* main checks */
		pthread_barrier_wait(&barrier);
		if (result == CUDA_SUCCESS) {
			__atomic_fetch_sub(&live, (int64_t)t.size, __ATOMIC_RELAXED);
			MUST(cuMemFreeAsync(t.pointer, stream));
		}
		if (busy && round % 4 == 3)
			MUST(cuCtxSynchronize());
		if (graphs) {
			MUST(cuGraphExecDestroy(t.graph));
			MUST(cuGraphDestroy(t.source));
		}
	}
	return NULL;
}

static uint64_t reserved(void)
{
	uint64_t value = 0;
	CUmemoryPool pool;

	if (graphs) {
		MUST(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		                                  &value));
		return value;
	}
	MUST(cuDeviceGetDefaultMemPool(&pool, 0));
	MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
	return value;
}

static void trim(void)
{
	CUmemoryPool pool;

	MUST(cuCtxSynchronize());
	if (graphs) {
		MUST(cuDeviceGraphMemTrim(0));
		return;
	}
	MUST(cuDeviceGetDefaultMemPool(&pool, 0));
	MUST(cuMemPoolTrimTo(pool, 0));
}

int main(int argc, char **argv)
{
	pthread_t thread[MOST] = {0};
	size_t available;
	uint64_t most_live = 0, most_reserved = 0, granted = 0;

	if (argc != 5)
		return 2;
	graphs = argv[1][0] == 'g';
	busy = argv[1][0] == 'b';
	threads = atoi(argv[2]);
	rounds = atoi(argv[3]);
	bytes = (size_t)atoi(argv[4]) * MIB;
	if (threads > MOST || pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1))
		return 2;
	context = use_primary();
	available = left();
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i);
	for (int round = 0; round < rounds; round++) {
		uint64_t now, held;

		pthread_barrier_wait(&barrier); /* allocate */
		pthread_barrier_wait(&barrier); /* allocated */
		now = (uint64_t)__atomic_load_n(&live, __ATOMIC_RELAXED);
		held = reserved();
		granted += now / MIB;
		most_live = now > most_live ? now : most_live;
		most_reserved = held > most_reserved ? held : most_reserved;
		if (now > available || (held > available && !busy)) {
			printf("round %d: %llu MiB live and %llu MiB reserved, of %llu\n", round,
			       (unsigned long long)(now / MIB), (unsigned long long)(held / MIB),
			       available / MIB);
			wrong = 1;
		}
		pthread_barrier_wait(&barrier);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	trim();
	for (int tries = 0; tries < 3000 && left() + 64 * MIB < available; tries++)
		usleep(10000);
	if (left() + 64 * MIB < available) {
		printf("%llu MiB stay charged after all was freed\n", (available - left()) / MIB);
		wrong = 1;
	}
	printf("%d threads, %d rounds: at most %llu MiB live and %llu MiB reserved, of %llu; %llu "
	       "MiB granted in all\n",
	       threads, rounds, (unsigned long long)(most_live / MIB),
	       (unsigned long long)(most_reserved / MIB), available / MIB,
	       (unsigned long long)granted);
	return wrong || !granted;
}
