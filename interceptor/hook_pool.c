/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory. What counts is what a pool reserves from the device, not what the program
 * takes from the pool: freed memory stays in the pool until it is trimmed, by the program or at
 * a synchronisation (release threshold).
 *
 * A pool grows by whole steps (32 MiB; driver observation, H100, 580.159.04). Before a call that
 * may make it grow, the growth is charged; afterwards the charge is settled to what the pool
 * reserves (cuMemPoolGetAttribute, 30 ns). Nothing here ever synchronises.
 */
#include "hook.h"
#include "pool.h"

#include <stddef.h>
#include <sys/mman.h>

#define POOL_STEP (32ull << 20)
#define POOL_GRAIN 512ull
#define POOL_BLOCK (2ull << 20) /* the device's memory comes in pages of this size */
#define POOL_KNOWN 512

struct pool {
	struct pool *next;
	CUmemoryPool handle; /* NULL: destroyed, the node is free for another pool */
	CUdevice ordinal;    /* -1: not on a device (host, managed, imported): costs nothing */
	struct lock lock;
	uint64_t reserved;  /* what the pool reserved when we last looked */
	uint64_t charged;   /* == reserved + pending, but while a growth is settled */
	uint64_t pending;   /* charged for growth by calls that are in the driver now */
	uint64_t threshold; /* the pool keeps so much at a synchronisation */
	/* At least so many bytes are free in what is reserved. A hint: threads may overwrite one
	 * another's subtraction, and what it gets wrong is seen by look_after(). */
	int64_t slack;
	uint64_t *allocations; /* this lane's counter on the device; NULL until the first request */
	/*
	 * Numbers of address blocks that were seen backed since `reserved` was last seen to change,
	 * each at its number modulo POOL_KNOWN. An allocation inside such blocks did not make the
	 * pool grow: then asking what it reserves (25 ns of a 700 ns pair) can be spared.
	 */
	uint64_t known[POOL_KNOWN];
};

static uint64_t attribute(const struct pool *pool, int which)
{
	uint64_t value = 0;

	if (DRIVER(cuMemPoolGetAttribute)(pool->handle, which, &value) != CUDA_SUCCESS)
		return pool->reserved; /* never seen; keep what we know */
	return value;
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

static struct pool *pool_find(struct process *process, CUmemoryPool handle)
{
	struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE);

	while (pool && __atomic_load_n(&pool->handle, __ATOMIC_RELAXED) != handle)
		pool = pool->next;
	return pool;
}

/* `ordinal` below -1 asks to find it out. Nodes are never unlinked: readers take no lock. */
static struct pool *pool_add(struct process *process, CUmemoryPool handle, CUdevice ordinal)
{
	struct pool *pool;

	if (!handle)
		return NULL;
	lock_take(&process->pool_lock);
	pool = pool_find(process, handle);
	if (!pool) {
		if (ordinal < -1)
			ordinal = ordinal_of_unseen(handle);
		pool = pool_find(process, NULL);
		if (!pool) {
			pool = mmap(NULL, sizeof(*pool), PROT_READ | PROT_WRITE,
			            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (pool == MAP_FAILED) {
				lock_give(&process->pool_lock);
				return NULL;
			}
			pool->next = process->pools;
			__atomic_store_n(&process->pools, pool, __ATOMIC_RELEASE);
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

static struct pool *pool_of(struct process *process, CUmemoryPool handle)
{
	struct pool *pool = pool_find(process, handle);

	return pool ? pool : pool_add(process, handle, -2);
}

/* Whether all blocks of the allocation are known; they are from now on, if `note`. */
static bool in_known_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes, bool note)
{
	uint64_t first = pointer / POOL_BLOCK, last = (pointer + bytes - 1) / POOL_BLOCK;

	/* Asking costs nothing in comparison with using so much. */
	if (last - first >= 4)
		return false;
	for (uint64_t block = first; block <= last; block++) {
		uint64_t *known = &pool->known[block % POOL_KNOWN];

		if (note)
			__atomic_store_n(known, block, __ATOMIC_RELAXED);
		else if (__atomic_load_n(known, __ATOMIC_RELAXED) != block)
			return false;
	}
	return true;
}

static void forget_known_blocks(struct pool *pool)
{
	for (unsigned i = 0; i < POOL_KNOWN; i++)
		__atomic_store_n(&pool->known[i], 0, __ATOMIC_RELAXED);
}

static struct pool *current_pool(struct process *process, CUdevice ordinal)
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

/*
 * With the pool's lock held: make the charge what the pool reserves now, plus what is
 * pending. Growth that nobody charged before (the pool was fragmented, or its free memory belonged
 * to another stream's future) is charged if it fits; `false` if it does not. With `anyway` it is
 * charged in any case, for the driver holds it.
 */
static bool settle(struct pool *pool, bool anyway)
{
	uint64_t reserved = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
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
	pool->charged = target;
	/* What it let go of may be backed anew without our being asked; what is charged stays an
	 * upper bound until the next look, and that begins with no block known. */
	if (reserved < pool->reserved)
		forget_known_blocks(pool);
	__atomic_store_n(&pool->reserved, reserved, __ATOMIC_RELAXED);
	return true;
}

/* With the pool's lock held. */
static void look_for_slack(struct pool *pool)
{
	uint64_t used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	uint64_t reserved = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	__atomic_store_n(&pool->slack, reserved > used ? (int64_t)(reserved - used) : 0,
	                 __ATOMIC_RELAXED);
}

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
	if (!settle(pool, false)) {
		/* It does not fit. Hand the memory back; what the pool cannot let go of at once,
		 * since the free is ordered in its stream, the driver holds and is charged. */
		call_free(r);
		*r->pointer = 0;
		if (DRIVER_HAS(cuMemPoolTrimTo))
			(void)DRIVER(cuMemPoolTrimTo)(pool->handle, pool->reserved);
		(void)settle(pool, true);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	look_for_slack(pool);
	lock_give(&pool->lock);
	return result;
}

/* After a call that was not expected to make the pool grow: look whether it did. */
static CUresult look_after(struct pool *pool, const struct request *r)
{
	uint64_t reserved = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

	if (reserved != __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE))
		return settle_surprise(pool, r);
	(void)in_known_blocks(pool, *r->pointer, r->bytes, true);
	/* Trimmed by another thread since: these may be the blocks that went. */
	if (reserved != __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE))
		forget_known_blocks(pool);
	return CUDA_SUCCESS;
}

static CUresult allocate_growing(struct pool *pool, const struct request *r, uint64_t grain)
{
	uint64_t growth;
	CUresult result;

	lock_take(&pool->lock);
	(void)settle(pool, true);
	look_for_slack(pool);
	if (pool->slack >= (int64_t)grain) {
		pool->slack -= (int64_t)grain;
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
		pool->charged += growth;
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
	(void)settle(pool, true);
	look_for_slack(pool);
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
		__atomic_fetch_add(pool->allocations, 1, __ATOMIC_RELAXED);
		if (__builtin_expect(!in_known_blocks(pool, *r->pointer, r->bytes, false), 0))
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
	if (!pool->allocations) {
		int device = process_device(process, pool->ordinal);

		if (device < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		pool->allocations = &process->ledger->lane[process->lane].entry[device].allocations;
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
		if (__builtin_expect(pool && pool->allocations, 1))
			return allocate_warm(pool, r);
	}
	process = process_attached();
	ordinal = stream_ordinal(r->stream, r->per_thread);
	if (ordinal < 0)
		return call_driver(r);
	return allocate(process, process ? current_pool(process, ordinal) : NULL, r);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	struct request r = {.pointer = pointer, .bytes = bytes, .stream = stream};

	if (!DRIVER_HAS(cuMemAllocAsync))
		return CUDA_ERROR_NOT_INITIALIZED;
	return allocate_current(&r);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	struct request r = {
	    .pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = true};

	if (!DRIVER_HAS(cuMemAllocAsync_ptsz))
		return CUDA_ERROR_NOT_INITIALIZED;
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

	if (!DRIVER_HAS(cuMemAllocFromPoolAsync))
		return CUDA_ERROR_NOT_INITIALIZED;
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

	if (!DRIVER_HAS(cuMemAllocFromPoolAsync_ptsz))
		return CUDA_ERROR_NOT_INITIALIZED;
	return pool ? allocate_from(&r)
	            : DRIVER(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	struct process *process = process_get();
	CUresult result;

	if (!DRIVER_HAS(cuMemPoolCreate))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuMemPoolCreate)(pool, properties);
	if (result == CUDA_SUCCESS && process) {
		bool on_device = properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
		                 properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

		(void)pool_add(process, *pool, on_device ? properties->location.id : -1);
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

	if (!DRIVER_HAS(cuMemPoolDestroy))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!pool || pool->ordinal < 0 || !DRIVER_HAS(cuMemPoolGetAttribute)) {
		result = DRIVER(cuMemPoolDestroy)(handle);
		if (result == CUDA_SUCCESS && pool)
			__atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
		return result;
	}
	lock_take(&pool->lock);
	used = attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
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

/* Settle a pool that may have shrunk. */
static void pool_shrunk(struct pool *pool)
{
	if (pool->ordinal < 0 || !DRIVER_HAS(cuMemPoolGetAttribute))
		return;
	lock_take(&pool->lock);
	if (pool->handle &&
	    attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != pool->reserved) {
		(void)settle(pool, true);
		look_for_slack(pool);
	}
	lock_give(&pool->lock);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct process *process = process_get();
	struct pool *pool = process && handle ? pool_find(process, handle) : NULL;
	CUresult result;

	if (!DRIVER_HAS(cuMemPoolTrimTo))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuMemPoolTrimTo)(handle, keep);
	if (pool)
		pool_shrunk(pool);
	return result;
}

bool pool_give_back(struct process *process, CUdevice ordinal)
{
	bool any = false;

	if (!DRIVER_HAS(cuMemPoolTrimTo))
		return false;
	for (struct pool *pool = process->pools; pool; pool = pool->next) {
		uint64_t before = pool->charged;

		/* A pool that is being settled by its own thread is up to date in a moment; and
		 * that thread may be the one that asks. */
		if (pool->ordinal != ordinal || !pool->handle || !before || !lock_try(&pool->lock))
			continue;
		(void)DRIVER(cuMemPoolTrimTo)(pool->handle, 0);
		(void)settle(pool, true);
		look_for_slack(pool);
		any |= pool->charged < before;
		lock_give(&pool->lock);
	}
	return any;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct process *process = process_get();
	struct pool *pool;
	CUresult result;

	if (!DRIVER_HAS(cuMemPoolSetAttribute))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuMemPoolSetAttribute)(handle, attribute, value);
	if (result == CUDA_SUCCESS && process && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool = pool_of(process, handle);
		if (pool)
			__atomic_store_n(&pool->threshold, *(const uint64_t *)value,
			                 __ATOMIC_RELAXED);
	}
	return result;
}

void pool_settle_all(struct process *process, CUdevice ordinal)
{
	for (struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if ((ordinal < 0 || pool->ordinal == ordinal) &&
		    __atomic_load_n(&pool->charged, __ATOMIC_RELAXED))
			pool_shrunk(pool);
	}
}

static void forget_current_pools(struct process *process)
{
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++)
		__atomic_store_n(&process->current_pool[ordinal], NULL, __ATOMIC_RELEASE);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	struct process *process = process_get();
	CUresult result;

	if (!DRIVER_HAS(cuDeviceSetMemPool))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuDeviceSetMemPool)(device, pool);
	if (process)
		forget_current_pools(process);
	return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	struct process *process = process_get();
	CUresult result;

	if (!DRIVER_HAS(cuMemSetMemPool))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuMemSetMemPool)(location, type, pool);
	if (process)
		forget_current_pools(process);
	return result;
}

/*
 * A pool that reserves more than its release threshold shrinks when it is synchronised (driver
 * observation: the default threshold 0 returns all that is free). A process that then sits idle
 * would keep siblings from those bytes. Frameworks that care for speed set a threshold: for them,
 * and for a process without pools, this is a look at one or two words.
 */
static void synchronised(void)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);

	if (!process)
		return;
	for (struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if (__atomic_load_n(&pool->charged, __ATOMIC_RELAXED) >
		    __atomic_load_n(&pool->threshold, __ATOMIC_RELAXED))
			pool_shrunk(pool);
	}
}

CUresult cuCtxSynchronize(void)
{
	CUresult result;

	if (!DRIVER_HAS(cuCtxSynchronize))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuCtxSynchronize)();
	synchronised();
	return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result;

	if (!DRIVER_HAS(cuCtxSynchronize_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuCtxSynchronize_v2)(context);
	synchronised();
	return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult result;

	if (!DRIVER_HAS(cuStreamSynchronize))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuStreamSynchronize)(stream);
	synchronised();
	return result;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	CUresult result;

	if (!DRIVER_HAS(cuStreamSynchronize_ptsz))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuStreamSynchronize_ptsz)(stream);
	synchronised();
	return result;
}

CUresult cuEventSynchronize(void *event)
{
	CUresult result;

	if (!DRIVER_HAS(cuEventSynchronize))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuEventSynchronize)(event);
	synchronised();
	return result;
}
