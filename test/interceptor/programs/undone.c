/* SPDX-License-Identifier: Apache-2.0 */
/*
 * undone: two threads get free memory of a pool, which is trimmed before they reach the driver, so
 * both make the pool grow beyond the quota, the second while the first undoes its call. Both must
 * fail. The simulated driver calls fakecuda_point(). Exits 0 if so.
 */
#include "driver.h"

#include "charged.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#define PART (512 * MIB)
#define STEP (32 * MIB)

struct taker {
	pthread_t thread;
	sem_t in_driver, may_go;
	CUresult result;
};

static struct taker takers[2];
static __thread struct taker *self; /* NULL: the main thread */
static CUcontext context;
static CUmemoryPool pool;

void fakecuda_point(const char *function);

static uint64_t reserved(void)
{
	uint64_t value = 0;

	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
	return value;
}

void fakecuda_point(const char *function)
{
	static bool freed;

	if (!self)
		return;
	if (!strcmp(function, "cuMemAllocAsync")) {
		sem_post(&self->in_driver);
		sem_wait(&self->may_go);
	} else if (self == &takers[0] && !strcmp(function, "cuMemFreeAsync")) {
		freed = true;
	} else if (freed) {
		uint64_t before = reserved();

		freed = false;
		sem_post(&takers[1].may_go);
		while (reserved() == before)
			sched_yield();
	}
}

static void *work(void *argument)
{
	CUdeviceptr pointer;
	CUstream stream;

	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, 1));
	self = argument;
	self->result = cuMemAllocAsync(&pointer, PART, stream);
	return NULL;
}

int main(void)
{
	uint64_t keep = UINT64_MAX;
	CUdeviceptr pointer[3];
	int reuse = 0;
	size_t most;

	context = use_primary();
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	/* A thread does not reuse memory freed in another's stream: CU_MEMPOOL_ATTR_REUSE_*. */
	for (int attribute = 1; attribute <= 3; attribute++)
		OK(cuMemPoolSetAttribute(pool, attribute, &reuse));
	for (int i = 0; i < 2; i++)
		OK(cuMemAllocAsync(&pointer[i], PART, NULL));
	for (int i = 0; i < 2; i++)
		OK(cuMemFreeAsync(pointer[i], NULL));
	OK(cuCtxSynchronize());
	base = left() + 2 * PART;
	most = (base - PART / 2) & ~(STEP - 1);
	for (int i = 0; i < 2; i++) {
		sem_init(&takers[i].in_driver, 0, 0);
		sem_init(&takers[i].may_go, 0, 0);
		pthread_create(&takers[i].thread, NULL, work, &takers[i]);
		sem_wait(&takers[i].in_driver);
	}
	/* Less than a piece of the quota is left. */
	OK(cuMemAllocAsync(&pointer[2], most, NULL));
	sem_post(&takers[0].may_go);
	for (int i = 0; i < 2; i++) {
		pthread_join(takers[i].thread, NULL);
		expect("a taker's cuMemAllocAsync", takers[i].result, CUDA_ERROR_OUT_OF_MEMORY);
	}
	charged("at the end", most);
	return wrong;
}
