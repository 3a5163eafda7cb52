/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory: the calls that take it from a pool, and those that make, trim, choose and
 * destroy pools. Before a call that may make a pool grow, the growth is charged; afterwards the
 * charge is settled to what the pool reserves.
 */
#include "hook.h"
#include "pool.h"

#include <stddef.h>

static bool capturing(CUstream stream, bool per_thread)
{
	int status = 0;

	if (per_thread && DRIVER_HAS(cuStreamIsCapturing_ptsz))
		return DRIVER(cuStreamIsCapturing_ptsz)(stream, &status) == CUDA_SUCCESS && status;
	return DRIVER_HAS(cuStreamIsCapturing) &&
	       DRIVER(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status;
}

/* One request, whichever entry point it came by. */
struct request {
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool handle; /* NULL: the current pool of the stream's device */
	CUstream stream;
	bool per_thread;
};

static CUresult call_driver(const struct request *r)
{
	if (r->handle)
		return r->per_thread ? DRIVER(cuMemAllocFromPoolAsync_ptsz)(r->pointer, r->bytes,
		                                                            r->handle, r->stream)
		                     : DRIVER(cuMemAllocFromPoolAsync)(r->pointer, r->bytes,
		                                                       r->handle, r->stream);
	return r->per_thread ? DRIVER(cuMemAllocAsync_ptsz)(r->pointer, r->bytes, r->stream)
	                     : DRIVER(cuMemAllocAsync)(r->pointer, r->bytes, r->stream);
}

static void call_free(const struct request *r)
{
	if (r->per_thread && DRIVER_HAS(cuMemFreeAsync_ptsz))
		(void)DRIVER(cuMemFreeAsync_ptsz)(*r->pointer, r->stream);
	else if (DRIVER_HAS(cuMemFreeAsync))
		(void)DRIVER(cuMemFreeAsync)(*r->pointer, r->stream);
}

/* After a call that succeeded and was not expected to make the pool grow, but did. */
static CUresult settle_surprise(struct pool *pool, const struct request *r)
{
	CUresult result = CUDA_SUCCESS;

	lock_take(&pool->lock);
	if (!pool_settle(pool, false)) {
		/* It does not fit. Hand the memory back; what the pool cannot let go of at once,
		 * since the free is ordered in its stream, the driver holds and is charged. */
		call_free(r);
		*r->pointer = 0;
		if (DRIVER_HAS(cuMemPoolTrimTo))
			(void)DRIVER(cuMemPoolTrimTo)(pool->handle, pool->reserved);
		(void)pool_settle(pool, true);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool_look_for_slack(pool);
	lock_give(&pool->lock);
	return result;
}

/* After a call that was not expected to make the pool grow: look whether it did. */
static CUresult look_after(struct pool *pool, const struct request *r)
{
	uint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	if (reserved != __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE))
		return settle_surprise(pool, r);
	(void)pool_in_known_blocks(pool, *r->pointer, r->bytes, true);
	/* Trimmed by another thread since: these may be the blocks that went. */
	if (reserved != __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE))
		pool_forget_blocks(pool);
	return CUDA_SUCCESS;
}

static CUresult allocate_growing(struct pool *pool, const struct request *r, uint64_t grain)
{
	uint64_t growth;
	int64_t slack;
	CUresult result;

	lock_take(&pool->lock);
	(void)pool_settle(pool, true);
	pool_look_for_slack(pool);
	slack = __atomic_load_n(&pool->slack, __ATOMIC_RELAXED);
	if (slack >= (int64_t)grain) {
		__atomic_store_n(&pool->slack, slack - (int64_t)grain, __ATOMIC_RELAXED);
		growth = 0;
	} else {
		growth = (grain + POOL_STEP - 1) & ~(POOL_STEP - 1);
	}
	lock_give(&pool->lock);

	if (growth) {
		/* What is captured becomes a graph's node and takes no memory now. */
		if (capturing(r->stream, r->per_thread))
			return call_driver(r);
		if (process_charge(pool->ordinal, growth, "cuMemAllocAsync") != CHARGE_OK)
			return CUDA_ERROR_OUT_OF_MEMORY;
		lock_take(&pool->lock);
		pool->pending += growth;
		__atomic_store_n(&pool->charged, pool->charged + growth, __ATOMIC_RELAXED);
		lock_give(&pool->lock);
	}
	result = call_driver(r);
	if (result == CUDA_SUCCESS)
		process_count(pool->ordinal);
	if (!growth)
		return result == CUDA_SUCCESS ? look_after(pool, r) : result;
	lock_take(&pool->lock);
	pool->pending -= growth;
	/* Another thread's growth may be in what is reserved and in `pending` too: then too much
	 * is charged until that thread comes here. */
	(void)pool_settle(pool, true);
	pool_look_for_slack(pool);
	lock_give(&pool->lock);
	return result;
}

/* The usual case, which must cost next to nothing: the pool has room, and gives out what it had. */
static inline CUresult allocate_warm(struct pool *pool, const struct request *r)
{
	uint64_t grain = (r->bytes + POOL_GRAIN - 1) & ~(POOL_GRAIN - 1);
	int64_t slack = __atomic_load_n(&pool->slack, __ATOMIC_RELAXED);
	CUresult result;

	if (__builtin_expect(slack < 0 || grain > (uint64_t)slack || grain == 0 || !r->pointer,
	                     0)) {
		if (!r->pointer || !r->bytes)
			return call_driver(r);
		if (grain < r->bytes || grain > INT64_MAX - POOL_STEP)
			return CUDA_ERROR_OUT_OF_MEMORY;
		return allocate_growing(pool, r, grain);
	}
	__atomic_store_n(&pool->slack, slack - (int64_t)grain, __ATOMIC_RELAXED);
	result = call_driver(r);
	if (result == CUDA_SUCCESS) {
		__atomic_fetch_add(__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED), 1,
		                   __ATOMIC_RELAXED);
		if (__builtin_expect(!pool_in_known_blocks(pool, *r->pointer, r->bytes, false), 0))
			return look_after(pool, r);
	}
	return result;
}

static CUresult allocate(struct process *process, struct pool *pool, const struct request *r)
{
	if (!process)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!pool || pool->ordinal < 0 || !DRIVER_HAS(cuMemPoolGetAttribute))
		return call_driver(r);
	if (!__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED)) {
		int device = process_device(process, pool->ordinal);

		if (device < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		__atomic_store_n(&pool->allocations,
		                 &process->ledger->lane[process->lane].entry[device].allocations,
		                 __ATOMIC_RELAXED);
	}
	return allocate_warm(pool, r);
}

/* The pool that cuMemAllocAsync draws on is that of the stream's device; the handles below 3 are
 * the default streams, which are the current context's. */
static CUdevice stream_ordinal(CUstream stream, bool per_thread)
{
	CUdevice ordinal;

	if ((uintptr_t)stream > 2 && !process_has_one_device()) {
		if (per_thread && DRIVER_HAS(cuStreamGetDevice_ptsz) &&
		    DRIVER(cuStreamGetDevice_ptsz)(stream, &ordinal) == CUDA_SUCCESS)
			return ordinal;
		if (!per_thread && DRIVER_HAS(cuStreamGetDevice) &&
		    DRIVER(cuStreamGetDevice)(stream, &ordinal) == CUDA_SUCCESS)
			return ordinal;
	}
	return process_current_ordinal();
}

static CUresult allocate_current(const struct request *r)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);
	struct pool *pool;
	CUdevice ordinal;

	/* With one device its pool is at hand. (In a forked child `process` is empty.) */
	if (process && process_has_one_device()) {
		pool = __atomic_load_n(&process->current_pool[0], __ATOMIC_ACQUIRE);
		if (__builtin_expect(pool && __atomic_load_n(&pool->allocations, __ATOMIC_RELAXED),
		                     1))
			return allocate_warm(pool, r);
	}
	process = process_attached();
	ordinal = stream_ordinal(r->stream, r->per_thread);
	if (ordinal < 0)
		return call_driver(r);
	return allocate(process, process ? pool_current(process, ordinal) : NULL, r);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	struct request r = {.pointer = pointer, .bytes = bytes, .stream = stream};

	return allocate_current(&r);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	struct request r = {
	    .pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = true};

	return allocate_current(&r);
}

static CUresult allocate_from(const struct request *r)
{
	struct process *process = process_attached();

	if (!r->handle)
		return call_driver(r);
	return allocate(process, process ? pool_of(process, r->handle) : NULL, r);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
	struct request r = {.pointer = pointer, .bytes = bytes, .handle = pool, .stream = stream};

	return pool ? allocate_from(&r)
	            : DRIVER(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                      CUstream stream)
{
	struct request r = {.pointer = pointer,
	                    .bytes = bytes,
	                    .handle = pool,
	                    .stream = stream,
	                    .per_thread = true};

	return pool ? allocate_from(&r)
	            : DRIVER(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
}

/* Where a new pool's memory counts, -1 for nowhere. Managed memory moves by use, so it counts as if
 * it were on its preferred device, or the current one. */
static CUdevice ordinal_of_pool(const CUmemPoolProps *properties)
{
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return properties->location.id;
	if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
		return process_current_ordinal();
	return -1;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMemPoolCreate)(pool, properties);
	if (result == CUDA_SUCCESS && process) {
		(void)pool_add(process, *pool, ordinal_of_pool(properties));
	}
	return result;
}

/* A destroyed pool's memory goes when the last of its allocations does. The driver no longer says
 * when that is, so what is in use now stays charged until the process ends. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct process *process = process_get();
	struct pool *pool = process && handle ? pool_find(process, handle) : NULL;
	uint64_t used = 0, charged = 0;
	CUresult result;

	if (!pool || pool->ordinal < 0 || !DRIVER_HAS(cuMemPoolGetAttribute)) {
		result = DRIVER(cuMemPoolDestroy)(handle);
		if (result == CUDA_SUCCESS && pool)
			__atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
		return result;
	}
	lock_take(&pool->lock);
	used = pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	used = (used + POOL_STEP - 1) & ~(POOL_STEP - 1);
	charged = pool->charged;
	/* The handle may be another pool's as soon as the driver has let it go. */
	__atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
	lock_give(&pool->lock);

	result = DRIVER(cuMemPoolDestroy)(handle);
	if (result != CUDA_SUCCESS)
		__atomic_store_n(&pool->handle, handle, __ATOMIC_RELEASE);
	else if (charged > used)
		process_release(pool->ordinal, charged - used);
	return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct process *process = process_get();
	struct pool *pool = process && handle ? pool_find(process, handle) : NULL;
	CUresult result;

	result = DRIVER(cuMemPoolTrimTo)(handle, keep);
	if (pool)
		pool_shrunk(pool);
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct process *process = process_get();
	struct pool *pool;
	CUresult result;

	result = DRIVER(cuMemPoolSetAttribute)(handle, attribute, value);
	if (result == CUDA_SUCCESS && process && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool = pool_of(process, handle);
		if (pool)
			__atomic_store_n(&pool->threshold, *(const uint64_t *)value,
			                 __ATOMIC_RELAXED);
	}
	return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuDeviceSetMemPool)(device, pool);
	if (process)
		pool_forget_current(process);
	return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMemSetMemPool)(location, type, pool);
	if (process)
		pool_forget_current(process);
	return result;
}
