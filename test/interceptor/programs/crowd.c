/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd async|busy|graph THREADS ROUNDS MIB: in each round the threads allocate MIB at the same
 * instant, from one pool or by launching a graph each. Their sum is within the quota, and so is the
 * memory that the driver reserves. Not for "busy": there streams keep freed memory for a while, and
 * are synchronized only in each fourth round. All is free at the end. Exits 0 if so.
 */
#include "driver.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB (1ull << 20)
#define MOST 64

static CUcontext context;
static pthread_barrier_t barrier;
static int graphs, busy, threads, rounds, wrong;
static size_t bytes;
static int64_t live;

static void check(const char *what, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	printf("%s: %d\n", what, result);
	exit(1);
}

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
	check("cuGraphCreate", cuGraphCreate(&t->source, 0));
	check("cuGraphAddMemAllocNode", cuGraphAddMemAllocNode(&added, t->source, NULL, 0, &node));
	check("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags(&t->graph, t->source, 0));
	t->pointer = node.dptr;
	pthread_barrier_wait(&barrier);
	return cuGraphLaunch(t->graph, stream);
}

static void *work(void *argument)
{
	int thread = (int)(intptr_t)argument;
	CUstream stream;

	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	check("cuStreamCreate", cuStreamCreate(&stream, 1));
	for (int round = 0; round < rounds; round++) {
		struct taken t = {0};
		CUresult result = take(&t, stream, round, thread);

		if (result == CUDA_SUCCESS)
			__atomic_fetch_add(&live, (int64_t)t.size, __ATOMIC_RELAXED);
		else if (result != CUDA_ERROR_OUT_OF_MEMORY)
			check("a request", result);
		pthread_barrier_wait(&barrier); /* main checks */
		pthread_barrier_wait(&barrier);
		if (result == CUDA_SUCCESS) {
			__atomic_fetch_sub(&live, (int64_t)t.size, __ATOMIC_RELAXED);
			check("cuMemFreeAsync", cuMemFreeAsync(t.pointer, stream));
		}
		if (busy && round % 4 == 3)
			check("cuCtxSynchronize", cuCtxSynchronize());
		if (graphs) {
			check("cuGraphExecDestroy", cuGraphExecDestroy(t.graph));
			check("cuGraphDestroy", cuGraphDestroy(t.source));
		}
	}
	return NULL;
}

static uint64_t reserved(void)
{
	uint64_t value = 0;
	CUmemoryPool pool;

	if (graphs) {
		check("cuDeviceGetGraphMemAttribute",
		      cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		                                   &value));
		return value;
	}
	check("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&pool, 0));
	check("cuMemPoolGetAttribute",
	      cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
	return value;
}

static void trim(void)
{
	CUmemoryPool pool;

	check("cuCtxSynchronize", cuCtxSynchronize());
	if (graphs) {
		check("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim(0));
		return;
	}
	check("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&pool, 0));
	check("cuMemPoolTrimTo", cuMemPoolTrimTo(pool, 0));
}

int main(int argc, char **argv)
{
	pthread_t thread[MOST] = {0};
	size_t available, total, after = 0;
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
	check("cuInit", cuInit(0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	check("cuCtxSetCurrent", cuCtxSetCurrent(context));
	check("cuMemGetInfo", cuMemGetInfo_v2(&available, &total));
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
	for (int tries = 0; tries < 3000; tries++) {
		struct timespec nap = {.tv_nsec = 10000000};

		check("cuMemGetInfo", cuMemGetInfo_v2(&after, &total));
		if (after + 64 * MIB >= available)
			break;
		nanosleep(&nap, NULL);
	}
	if (after + 64 * MIB < available) {
		printf("%llu MiB stay charged after all was freed\n", (available - after) / MIB);
		wrong = 1;
	}
	printf("%d threads, %d rounds: at most %llu MiB live and %llu MiB reserved, of %llu; %llu "
	       "MiB granted in all\n",
	       threads, rounds, (unsigned long long)(most_live / MIB),
	       (unsigned long long)(most_reserved / MIB), available / MIB,
	       (unsigned long long)granted);
	return wrong || !granted;
}
