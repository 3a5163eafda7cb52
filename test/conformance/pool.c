/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools: how their reservations grow and shrink. */
#include "conformance.h"

static uint64_t attribute(CUmemoryPool pool, int which)
{
	uint64_t value = 0;

	MUST(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

static void say(CUmemoryPool pool, const char *key, long long before)
{
	printf("%s: reserved %llu, used %llu, held %lld\n", key,
	       (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
	       (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
	       held() - before);
}

static void set_threshold(CUmemoryPool pool, uint64_t bytes)
{
	MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static void set_reuse(CUmemoryPool pool, int allowed)
{
	for (int which = 1; which <= 3; which++)
		MUST(cuMemPoolSetAttribute(pool, which, &allowed));
}

/* Single allocations: while it lives, after its free, after a synchronization. */
static void sizes(CUmemoryPool pool, CUstream stream)
{
	static const size_t list[] = {1,         512,     1 * MiB,    32 * MiB, 32 * MiB + 1,
	                              100 * MiB, 1 * GiB, 1 * GiB + 1};

	for (size_t i = 0; i < COUNT(list); i++) {
		long long before = held();
		CUdeviceptr pointer;
		char size[32];

		size_text(size, list[i]);
		MUST(cuMemAllocAsync(&pointer, list[i], stream));
		say(pool, keyed("one.%s.live", size), before);
		MUST(cuMemFreeAsync(pointer, stream));
		say(pool, keyed("one.%s.freed", size), before);
		MUST(cuStreamSynchronize(stream));
		say(pool, keyed("one.%s.waited", size), before);
	}
}

static void growth(CUmemoryPool pool, CUstream stream)
{
	CUdeviceptr pointers[40];
	long long before = held();

	for (int i = 0; i < 40; i++) {
		MUST(cuMemAllocAsync(&pointers[i], i < 20 ? 3 * MiB : 100 * KiB, stream));
		if (i % 5 != 4)
			continue;
		say(pool, keyed("grow.%d", i + 1), before);
	}
	for (int i = 0; i < 40; i += 2)
		MUST(cuMemFreeAsync(pointers[i], stream));
	MUST(cuStreamSynchronize(stream));
	say(pool, "grow.every_second_freed", before);
	for (int i = 1; i < 40; i += 2)
		MUST(cuMemFreeAsync(pointers[i], stream));
	say(pool, "grow.all_freed", before);
	MUST(cuCtxSynchronize());
	say(pool, "grow.waited", before);
}

static void threshold(CUmemoryPool pool, CUstream stream)
{
	long long before = held();
	CUdeviceptr pointers[4];

	set_threshold(pool, 64 * MiB);
	for (int i = 0; i < 4; i++)
		MUST(cuMemAllocAsync(&pointers[i], 32 * MiB, stream));
	say(pool, "threshold.live", before);
	for (int i = 0; i < 4; i++)
		MUST(cuMemFreeAsync(pointers[i], stream));
	MUST(cuStreamSynchronize(stream));
	say(pool, "threshold.waited", before);
	MUST(cuMemPoolTrimTo(pool, 40 * MiB));
	say(pool, "threshold.trim_40MiB", before);
	MUST(cuMemPoolTrimTo(pool, 0));
	say(pool, "threshold.trim_0", before);

	set_threshold(pool, UINT64_MAX);
	MUST(cuMemAllocAsync(&pointers[0], 1, stream));
	MUST(cuMemFreeAsync(pointers[0], stream));
	MUST(cuStreamSynchronize(stream));
	say(pool, "threshold.unlimited", before);
	set_threshold(pool, 0);
	say(pool, "threshold.back_to_0", before);
	MUST(cuStreamSynchronize(stream));
	say(pool, "threshold.back_to_0.waited", before);
	MUST(cuMemPoolTrimTo(pool, 0));
	say(pool, "threshold.back_to_0.trimmed", before);
}

/* Which calls release unused reservations. */
static void waits(CUmemoryPool pool, CUstream stream, CUstream other)
{
	long long before = held();
	CUdeviceptr pointer;
	CUevent event;

	MUST(cuEventCreate(&event, 2));
	MUST(cuMemAllocAsync(&pointer, 1 * MiB, stream));
	MUST(cuMemFreeAsync(pointer, stream));
	MUST(cuEventRecord(event, stream));
	MUST(cuEventSynchronize(event));
	say(pool, "wait.event", before);
	MUST(cuMemAllocAsync(&pointer, 1 * MiB, stream));
	MUST(cuMemFreeAsync(pointer, stream));
	MUST(cuStreamSynchronize(other));
	say(pool, "wait.other_stream", before);
	MUST(cuCtxSynchronize());
	say(pool, "wait.context", before);
	MUST(cuMemAllocAsync(&pointer, 1 * MiB, stream));
	MUST(cuMemFree_v2(pointer));
	say(pool, "wait.free", before);
	MUST(cuCtxSynchronize());
	MUST(cuEventDestroy_v2(event));
}

static void two_streams(CUmemoryPool pool, CUstream first, CUstream second)
{
	uint64_t keep = UINT64_MAX;
	CUdeviceptr a, b;
	long long before = held();

	set_threshold(pool, keep);
	for (int allowed = 1; allowed >= 0; allowed--) {
		set_reuse(pool, allowed);
		MUST(cuMemAllocAsync(&a, 32 * MiB, first));
		MUST(cuMemFreeAsync(a, first));
		MUST(cuMemAllocAsync(&b, 32 * MiB, second));
		say(pool, keyed("streams.reuse_%d.at_once", allowed), before);
		MUST(cuMemFreeAsync(b, second));
		MUST(cuCtxSynchronize());
		MUST(cuMemAllocAsync(&b, 32 * MiB, second));
		say(pool, keyed("streams.reuse_%d.after_wait", allowed), before);
		MUST(cuMemFreeAsync(b, second));
		MUST(cuCtxSynchronize());
		MUST(cuMemPoolTrimTo(pool, 0));
	}
	set_reuse(pool, 1);
	set_threshold(pool, 0);
}

/* Destroyed while it is a device's current one, and while two allocations live in it. */
static void destroyed_pool(CUmemoryPool fallback, CUstream stream)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool, current = NULL;
	CUdeviceptr large, small;
	long long before = held();

	MUST(cuMemPoolCreate(&pool, &properties));
	MUST(cuDeviceSetMemPool(0, pool));
	MUST(cuMemPoolDestroy(pool));
	MUST(cuDeviceGetMemPool(&current, 0));
	printf("destroyed.current: default %d\n", current == fallback);
	MUST(cuMemAllocAsync(&small, 1 * MiB, stream));
	say(fallback, "destroyed.current.alloc", before);
	MUST(cuMemFreeAsync(small, stream));
	MUST(cuStreamSynchronize(stream));

	MUST(cuMemPoolCreate(&pool, &properties));
	MUST(cuMemAllocFromPoolAsync(&large, 40 * MiB, pool, stream));
	MUST(cuMemAllocFromPoolAsync(&small, 1 * MiB, pool, stream));
	say(pool, "destroyed.live", before);
	MUST(cuMemPoolDestroy(pool));
	printf("destroyed.in_use: held %lld\n", held() - before);
	MUST(cuMemFreeAsync(large, stream));
	printf("destroyed.40_freed: held %lld\n", held() - before);
	MUST(cuStreamSynchronize(stream));
	printf("destroyed.40_waited: held %lld\n", held() - before);
	MUST(cuMemFreeAsync(small, stream));
	printf("destroyed.1_freed: held %lld\n", held() - before);
	MUST(cuStreamSynchronize(stream));
	printf("destroyed.1_waited: held %lld\n", held() - before);
}

/* Pools that the program creates: destroyed while in use, limited, on the host. */
static void own_pool(CUstream stream)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemPoolProps limited = properties;
	CUmemPoolProps host = properties;
	CUmemoryPool pool;
	CUdeviceptr pointer;
	CUresult result;
	long long before = held();

	MUST(cuMemPoolCreate(&pool, &properties));
	say(pool, "own.fresh", before);
	MUST(cuMemAllocFromPoolAsync(&pointer, 10 * MiB, pool, stream));
	say(pool, "own.live", before);
	say_result("own.destroy", cuMemPoolDestroy(pool));
	printf("own.destroyed_with_live: held %lld\n", held() - before);
	MUST(cuMemFreeAsync(pointer, stream));
	MUST(cuStreamSynchronize(stream));
	printf("own.last_freed: held %lld\n", held() - before);

	limited.maxSize = 64 * MiB;
	MUST(cuMemPoolCreate(&pool, &limited));
	say_result("limited.65MiB", cuMemAllocFromPoolAsync(&pointer, 65 * MiB, pool, stream));
	MUST(cuMemPoolDestroy(pool));

	host.location.type = CU_MEM_LOCATION_TYPE_HOST;
	result = cuMemPoolCreate(&pool, &host);
	say_result("host.create", result);
	if (result == CUDA_SUCCESS) {
		say_result("host.alloc", cuMemAllocFromPoolAsync(&pointer, 10 * MiB, pool, stream));
		say(pool, "host.live", before);
		cuMemFreeAsync(pointer, stream);
		MUST(cuStreamSynchronize(stream));
		MUST(cuMemPoolDestroy(pool));
	}
}

#define MANY 1000

/* The possible number of pools of a kind: each reserves addresses for its growth. */
static void many_pools(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	static CUmemoryPool pools[MANY];
	long long before = held();

	for (int bounded = 0; bounded < 2; bounded++) {
		CUresult result = CUDA_SUCCESS;
		int count = 0;

		properties.maxSize = bounded ? 64 * MiB : 0;
		while (count < MANY && result == CUDA_SUCCESS) {
			result = cuMemPoolCreate(&pools[count], &properties);
			if (result == CUDA_SUCCESS)
				count++;
			if (count == 700)
				printf("pools.%s.700: held %lld\n", bounded ? "64MiB" : "unbounded",
				       held() - before);
		}
		say_result(bounded ? "pools.64MiB.1000" : "pools.unbounded.1000", result);
		while (count)
			MUST(cuMemPoolDestroy(pools[--count]));
	}
}

/* The card takes a managed pool's memory as if it had been touched, and frees it late. */
static void managed_pool(CUstream stream)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
	                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	long long before = held();
	CUmemoryPool pool;
	CUdeviceptr pointer;

	MUST(cuMemPoolCreate(&pool, &properties));
	say(pool, "managed.fresh", before);
	MUST(cuMemAllocFromPoolAsync(&pointer, 64 * MiB, pool, stream));
	MUST(cuCtxSynchronize());
	say(pool, "managed.live", before);
	MUST(cuMemsetD8_v2(pointer, 1, 64 * MiB));
	say(pool, "managed.touched", before);
	MUST(cuMemFreeAsync(pointer, stream));
	MUST(cuCtxSynchronize());
	say(pool, "managed.freed", before);
	MUST(cuMemPoolDestroy(pool));
	printf("managed.destroyed: held %lld\n", held() - before);
}

static void refusals(CUmemoryPool pool, CUstream stream)
{
	CUdeviceptr pointer;
	uint64_t one = 1;

	say_result("alloc.zero", cuMemAllocAsync(&pointer, 0, stream));
	say_result("alloc.null", cuMemAllocAsync(NULL, 4096, stream));
	say_result("alloc.2^64-6", cuMemAllocAsync(&pointer, (size_t)-6, stream));
	say_result("free.unknown", cuMemFreeAsync(0x1000, stream));
	say_result("free.null", cuMemFreeAsync(0, stream));
	say_result("pool.destroy_default", cuMemPoolDestroy(pool));
	say_result("pool.set_reserved",
	           cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &one));
	say_result("pool.set_high",
	           cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one));
}

int main(void)
{
	CUmemoryPool pool;
	CUstream first, second;

	start_with_context();
	MUST(cuDeviceGetDefaultMemPool(&pool, 0));
	MUST(cuStreamCreate(&first, 1));
	MUST(cuStreamCreate(&second, 1));
	printf("default.threshold: %llu\n",
	       (unsigned long long)attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
	managed_pool(first); /* before all others: see differences.md */
	refusals(pool, first);
	sizes(pool, first);
	growth(pool, first);
	threshold(pool, first);
	waits(pool, first, second);
	two_streams(pool, first, second);
	many_pools();
	own_pool(first);
	destroyed_pool(pool, first);
	return 0;
}
