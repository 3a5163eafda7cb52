/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include "hook.h"

#include <stddef.h>
#include <sys/mman.h>

uint64_t pool_attribute(const struct pool *pool, int which)
{
	uint64_t value = 0;
	CUresult result;

	if (pool->graphs)
		result = DRIVER(cuDeviceGetGraphMemAttribute)(
		    pool->ordinal,
		    which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT
		        ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
		        : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		    &value);
	else
		result = DRIVER(cuMemPoolGetAttribute)(pool->handle, which, &value);
	if (result == CUDA_SUCCESS)
		return value;
	return __atomic_load_n(&pool->reserved,
	                       __ATOMIC_RELAXED); /* never seen; keep what we know */
}

/* Have the driver let go of what is free in it. */
static void trim(const struct pool *pool)
{
	if (pool->graphs) {
		if (DRIVER_HAS(cuDeviceGraphMemTrim))
			(void)DRIVER(cuDeviceGraphMemTrim)(pool->ordinal);
	} else if (DRIVER_HAS(cuMemPoolTrimTo)) {
		(void)DRIVER(cuMemPoolTrimTo)(pool->handle, 0);
	}
}

/* A pool that a hook did not see made is a device's default pool, or an import, or not on a device.
 */
static CUdevice ordinal_of_unseen(CUmemoryPool handle)
{
	int count = 0;

	if (!DRIVER_HAS(cuDeviceGetCount) || !DRIVER_HAS(cuDeviceGetDefaultMemPool) ||
	    DRIVER(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
		return -1;
	for (CUdevice ordinal = 0; ordinal < count && ordinal < PROCESS_ORDINALS; ordinal++) {
		CUmemoryPool other;

		if (DRIVER(cuDeviceGetDefaultMemPool)(&other, ordinal) == CUDA_SUCCESS &&
		    other == handle)
			return ordinal;
	}
	return -1;
}

struct pool *pool_find(struct process *process, CUmemoryPool handle)
{
	struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE);

	while (pool && __atomic_load_n(&pool->handle, __ATOMIC_RELAXED) != handle)
		pool = pool->next;
	return pool;
}

/* With pool_lock held: a node that is in the list and has no handle yet. Nodes are never unlinked:
 * readers take no lock. */
static struct pool *free_node(struct process *process)
{
	struct pool *pool = pool_find(process, NULL);

	if (pool)
		return pool;
	pool =
	    mmap(NULL, sizeof(*pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pool == MAP_FAILED)
		return NULL;
	pool->next = process->pools;
	__atomic_store_n(&process->pools, pool, __ATOMIC_RELEASE);
	return pool;
}

struct pool *pool_add(struct process *process, CUmemoryPool handle, CUdevice ordinal)
{
	struct pool *pool;

	if (!handle)
		return NULL;
	lock_take(&process->pool_lock);
	pool = pool_find(process, handle);
	if (!pool) {
		if (ordinal < -1)
			ordinal = ordinal_of_unseen(handle);
		pool = free_node(process);
		if (!pool) {
			lock_give(&process->pool_lock);
			return NULL;
		}
		pool->ordinal = ordinal;
		pool->reserved = pool->charged = pool->pending = 0;
		pool->threshold = 0;
		pool->slack = 0;
		pool->allocations = NULL;
		__atomic_store_n(&pool->handle, handle, __ATOMIC_RELEASE);
	}
	lock_give(&process->pool_lock);
	return pool;
}

struct pool *pool_of(struct process *process, CUmemoryPool handle)
{
	struct pool *pool = pool_find(process, handle);

	return pool ? pool : pool_add(process, handle, -2);
}

struct pool *pool_of_graphs(struct process *process, CUdevice ordinal)
{
	struct pool *pool;

	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS || !DRIVER_HAS(cuDeviceGetGraphMemAttribute))
		return NULL;
	pool = __atomic_load_n(&process->graph_pool[ordinal], __ATOMIC_ACQUIRE);
	if (__builtin_expect(pool != NULL, 1))
		return pool;
	lock_take(&process->pool_lock);
	pool = process->graph_pool[ordinal];
	if (!pool)
		pool = free_node(process);
	if (pool && !pool->graphs) {
		pool->ordinal = ordinal;
		pool->reserved = pool->charged = pool->pending = 0;
		pool->threshold = UINT64_MAX; /* it does not shrink at a synchronisation */
		pool->graphs = true;
		/* A handle that no pool of the driver has. */
		__atomic_store_n(&pool->handle, (CUmemoryPool)pool, __ATOMIC_RELEASE);
		__atomic_store_n(&process->graph_pool[ordinal], pool, __ATOMIC_RELEASE);
	}
	lock_give(&process->pool_lock);
	return pool;
}

void pool_forget_blocks(struct pool *pool)
{
	for (unsigned i = 0; i < POOL_KNOWN; i++)
		__atomic_store_n(&pool->known[i], 0, __ATOMIC_RELAXED);
}

struct pool *pool_current(struct process *process, CUdevice ordinal)
{
	struct pool *pool;
	CUmemoryPool handle;

	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS)
		return NULL;
	pool = __atomic_load_n(&process->current_pool[ordinal], __ATOMIC_ACQUIRE);
	if (__builtin_expect(pool != NULL, 1))
		return pool;
	if (!DRIVER_HAS(cuDeviceGetMemPool) ||
	    DRIVER(cuDeviceGetMemPool)(&handle, ordinal) != CUDA_SUCCESS)
		return NULL;
	pool = pool_of(process, handle);
	__atomic_store_n(&process->current_pool[ordinal], pool, __ATOMIC_RELEASE);
	return pool;
}

bool pool_settle(struct pool *pool, bool anyway)
{
	uint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t target = reserved + pool->pending;

	if (target > pool->charged) {
		if (anyway)
			process_charge_anyway(pool->ordinal, target - pool->charged);
		else if (process_charge(pool->ordinal, target - pool->charged, "a pool's growth") !=
		         CHARGE_OK)
			return false;
	} else if (target < pool->charged) {
		process_release(pool->ordinal, pool->charged - target);
	}
	__atomic_store_n(&pool->charged, target, __ATOMIC_RELAXED);
	/* What it let go of may be backed anew without our being asked; what is charged stays an
	 * upper bound until the next look, and that begins with no block known. */
	if (reserved < pool->reserved) {
		__atomic_fetch_add(&pool->shrunk, 1, __ATOMIC_RELAXED);
		pool_forget_blocks(pool);
	}
	__atomic_store_n(&pool->reserved, reserved, __ATOMIC_RELAXED);
	return true;
}

void pool_look_for_slack(struct pool *pool)
{
	uint64_t used = pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	uint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	__atomic_store_n(&pool->slack, reserved > used ? (int64_t)(reserved - used) : 0,
	                 __ATOMIC_RELAXED);
}

void pool_shrunk(struct pool *pool)
{
	if (pool->ordinal < 0 || (!pool->graphs && !DRIVER_HAS(cuMemPoolGetAttribute)))
		return;
	lock_take(&pool->lock);
	if (pool->handle &&
	    pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != pool->reserved) {
		(void)pool_settle(pool, true);
		pool_look_for_slack(pool);
	}
	lock_give(&pool->lock);
}

bool pool_give_back(struct process *process, CUdevice ordinal)
{
	bool any = false;

	for (struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		uint64_t before;

		/* A pool that is being settled by its own thread is up to date in a moment; and
		 * that thread may be the one that asks. */
		if (pool->ordinal != ordinal || !__atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE) ||
		    !__atomic_load_n(&pool->charged, __ATOMIC_RELAXED) || !lock_try(&pool->lock))
			continue;
		before = pool->charged;
		trim(pool);
		(void)pool_settle(pool, true);
		pool_look_for_slack(pool);
		any |= pool->charged < before;
		lock_give(&pool->lock);
	}
	return any;
}

void pool_settle_all(struct process *process, CUdevice ordinal)
{
	for (struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if (pool->ordinal == ordinal && __atomic_load_n(&pool->charged, __ATOMIC_RELAXED))
			pool_shrunk(pool);
	}
}

void pool_forget_current(struct process *process)
{
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++)
		__atomic_store_n(&process->current_pool[ordinal], NULL, __ATOMIC_RELEASE);
}
