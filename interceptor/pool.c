/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include "grant.h"
#include "handover.h"
#include "pages.h"
#include "state.h"
#include "stream.h"
#include "table.h"

static struct pools *pools(void)
{
	return &state_get()->pools;
}

uint64_t pool_attribute(const struct pool *pool, int which)
{
	uint64_t value = 0;
	CUresult result;

	if (pool->graphs) {
		result = DRIVER(cuDeviceGetGraphMemAttribute)(
		    pool->ordinal,
		    which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT
		        ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
		        : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
		    &value);
	} else {
		STREAM_CAPTURE_RELAXED;
		result = DRIVER(cuMemPoolGetAttribute)(pool->handle, which, &value);
	}
	if (result == CUDA_SUCCESS)
		return value;
	return __atomic_load_n(&pool->reserved,
	                       __ATOMIC_RELAXED); /* unexpected: keep the last figure */
}

void pool_trim(const struct pool *pool, uint64_t keep)
{
	if (pool->graphs) {
		if (DRIVER_HAS(cuDeviceGraphMemTrim))
			(void)DRIVER(cuDeviceGraphMemTrim)(pool->ordinal);
	} else if (DRIVER_HAS(cuMemPoolTrimTo)) {
		STREAM_CAPTURE_RELAXED;
		(void)DRIVER(cuMemPoolTrimTo)(pool->handle, keep);
	}
}

/* --- the list ------------------------------------------------------------------------------- */

static struct pool *find(CUmemoryPool handle)
{
	struct pool *pool = __atomic_load_n(&pools()->list, __ATOMIC_ACQUIRE);

	while (pool && __atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE) != handle)
		pool = pool->next;
	return pool;
}

struct pool *pool_find(CUmemoryPool handle)
{
	struct pool *pool = find(handle);

	return pool && !__atomic_load_n(&pool->retired, __ATOMIC_RELAXED) ? pool : NULL;
}

bool pool_is_retired(CUmemoryPool handle)
{
	struct pool *pool = find(handle);

	return pool && __atomic_load_n(&pool->retired, __ATOMIC_RELAXED);
}

/* Called with the list's lock held. Returns a node without a handle. */
static struct pool *free_node(void)
{
	struct pool *pool = find(NULL);

	if (pool)
		return pool;
	pool = pages_map(sizeof(*pool));
	if (!pool)
		return NULL;
	pool->next = pools()->list;
	__atomic_store_n(&pools()->list, pool, __ATOMIC_RELEASE);
	return pool;
}

static void forget_blocks(struct pool *pool)
{
	for (unsigned i = 0; i < POOL_KNOWN; i++)
		__atomic_store_n(&pool->known[i], 0, __ATOMIC_RELAXED);
}

/* For fields read without the node's lock, even while it is free or reused. */
#define SET(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

/* Called with the list's lock held. */
static struct pool *begin(CUmemoryPool handle, CUdevice ordinal, enum kind kind)
{
	struct pool *pool = free_node();

	if (!pool)
		return NULL;
	LOCKED(&pool->lock);
	pool->kind = kind;
	pool->made = false;
	pool->pending = 0;
	SET(pool->ordinal, ordinal);
	SET(pool->graphs, !handle);
	SET(pool->retired, false);
	SET(pool->reserved, 0);
	SET(pool->charged, 0);
	SET(pool->forced, 0);
	SET(pool->threshold, handle ? 0 : UINT64_MAX); /* a synchronisation does not shrink it */
	SET(pool->slack, 0);
	SET(pool->taken, 0);
	SET(pool->crowded, false);
	SET(pool->allocations, NULL);
	forget_blocks(pool);
	/* Graph memory has no handle: use a value that no pool of the driver has. */
	__atomic_store_n(&pool->handle, handle ? handle : (CUmemoryPool)pool, __ATOMIC_RELEASE);
	return pool;
}

/* Returns the device of a pool that no hook saw created. Unless it is a device's default pool, it
 * is charged on the current device, for lack of a better choice. */
static CUdevice ordinal_of_unseen(CUmemoryPool handle)
{
	int count = 0;

	if (!DRIVER_HAS(cuDeviceGetCount) || !DRIVER_HAS(cuDeviceGetDefaultMemPool) ||
	    DRIVER(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
		return process_current_ordinal();
	for (CUdevice ordinal = 0; ordinal < count && ordinal < PROCESS_ORDINALS; ordinal++) {
		CUmemoryPool other;

		if (DRIVER(cuDeviceGetDefaultMemPool)(&other, ordinal) == CUDA_SUCCESS &&
		    other == handle)
			return ordinal;
	}
	return process_current_ordinal();
}

struct pool *pool_note(CUmemoryPool handle, CUdevice ordinal, bool managed)
{
	struct pool *pool;

	if (!handle)
		return NULL;
	LOCKED(&pools()->lock);
	pool = find(handle);
	if (!pool) {
		if (ordinal == POOL_UNSEEN)
			ordinal = ordinal_of_unseen(handle);
		pool = begin(handle, ordinal, managed ? KIND_UNLISTED : KIND_MEMORY);
	}
	return pool;
}

struct pool *pool_of(CUmemoryPool handle)
{
	struct pool *pool = pool_find(handle);

	return pool ? pool : pool_note(handle, POOL_UNSEEN, false);
}

struct pool *pool_of_graphs_known(CUdevice ordinal)
{
	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS)
		return NULL;
	return __atomic_load_n(&pools()->graphs[ordinal], __ATOMIC_ACQUIRE);
}

struct pool *pool_of_graphs(CUdevice ordinal)
{
	struct pool *pool = pool_of_graphs_known(ordinal);

	if (pool || ordinal < 0 || ordinal >= PROCESS_ORDINALS ||
	    !DRIVER_HAS(cuDeviceGetGraphMemAttribute))
		return pool;
	LOCKED(&pools()->lock);
	pool = pools()->graphs[ordinal];
	if (!pool) {
		pool = begin(NULL, ordinal, KIND_MEMORY);
		__atomic_store_n(&pools()->graphs[ordinal], pool, __ATOMIC_RELEASE);
	}
	return pool;
}

struct pool *pool_current(CUdevice ordinal)
{
	struct pools *all = pools();
	struct pool *pool;
	CUmemoryPool handle;
	uint64_t forgotten;

	if (ordinal < 0 || ordinal >= PROCESS_ORDINALS)
		return NULL;
	pool = __atomic_load_n(&all->current[ordinal], __ATOMIC_ACQUIRE);
	if (__builtin_expect(pool != NULL, 1))
		return pool;
	forgotten = __atomic_load_n(&all->forgotten, __ATOMIC_ACQUIRE);
	if (!DRIVER_HAS(cuDeviceGetMemPool) ||
	    DRIVER(cuDeviceGetMemPool)(&handle, ordinal) != CUDA_SUCCESS)
		return NULL;
	pool = pool_of(handle);
	LOCKED(&all->lock);
	if (all->forgotten == forgotten)
		__atomic_store_n(&all->current[ordinal], pool, __ATOMIC_RELEASE);
	return pool;
}

void pool_forget_current(void)
{
	struct pools *all = pools();

	LOCKED(&all->lock);
	__atomic_store_n(&all->forgotten, all->forgotten + 1, __ATOMIC_RELEASE);
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++)
		__atomic_store_n(&all->current[ordinal], NULL, __ATOMIC_RELEASE);
}

/* --- charges -------------------------------------------------------------------------------- */

#define MOST_BLOCKS 4 /* of one allocation that are checked */

bool pool_knows_blocks(struct pool *pool, uint64_t first, uint64_t last)
{
	if (last - first >= MOST_BLOCKS)
		return false;
	while (first <= last && pool_knows_block(pool, first))
		first++;
	return first > last;
}

void pool_note_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes)
{
	uint64_t first = pointer / POOL_BLOCK, last = (pointer + bytes - 1) / POOL_BLOCK;

	for (uint64_t block = first; last - first < MOST_BLOCKS && block <= last; block++)
		__atomic_store_n(&pool->known[block % POOL_KNOWN], block, __ATOMIC_RELAXED);
}

/* Reports whether a synchronisation may shrink the pool, or has to. */
static bool may_shrink(const struct pool *pool)
{
	return __atomic_load_n(&pool->retired, __ATOMIC_RELAXED) || pool_is_over(pool) ||
	       __atomic_load_n(&pool->forced, __ATOMIC_RELAXED) ||
	       __atomic_load_n(&pool->charged, __ATOMIC_RELAXED) >
	           __atomic_load_n(&pool->threshold, __ATOMIC_RELAXED);
}

static void note_if_it_may_shrink(struct pool *pool)
{
	if (may_shrink(pool))
		__atomic_store_n(&at_hand.may_shrink, true, __ATOMIC_RELAXED);
}

void pool_add_charge(struct pool *pool, uint64_t bytes)
{
	__atomic_store_n(&pool->charged, pool->charged + bytes, __ATOMIC_RELAXED);
	note_if_it_may_shrink(pool);
}

uint64_t pool_look(struct pool *pool)
{
	uint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	uint64_t charged = pool->charged;
	int device = process_device_attached(pool->ordinal);
	bool by_pool;

	if (reserved + pool->pending < charged) {
		uint64_t back = charged - reserved - pool->pending;

		process_release(pool->ordinal,
		                pool->kind == KIND_MEMORY
		                    ? back - handover_kept_of_pools(back, pool->ordinal)
		                    : back,
		                pool->kind);
		charged -= back;
		SET(pool->forced, pool->forced > back ? pool->forced - back : 0);
	} else if (reserved > charged && device >= 0 &&
	           process_charge(process_seen(), device, reserved - charged, pool->kind,
	                          &by_pool) == LEDGER_OK) {
		charged = reserved;
	}
	SET(pool->charged, charged);
	/* The driver may back released blocks again unseen. */
	if (reserved < pool->reserved) {
		__atomic_fetch_add(&pool->shrunk, 1, __ATOMIC_RELAXED);
		forget_blocks(pool);
	}
	__atomic_store_n(&pool->reserved, reserved, __ATOMIC_RELEASE);
	note_if_it_may_shrink(pool);
	return reserved > charged ? reserved - charged : 0;
}

void pool_charge_anyway(struct pool *pool)
{
	uint64_t over = pool->reserved > pool->charged ? pool->reserved - pool->charged : 0;

	if (!over)
		return;
	process_charge_anyway(pool->ordinal, over, pool->kind);
	SET(pool->forced, pool->forced + over);
	pool_add_charge(pool, over);
}

bool pool_take(struct pool *pool, uint64_t bytes)
{
	int64_t slack;

	if (!process_is_first_thread())
		SET(pool->crowded, true);
	__atomic_fetch_add(&pool->taken, bytes, __ATOMIC_SEQ_CST);
	slack = __atomic_load_n(&pool->slack, __ATOMIC_SEQ_CST);
	while (slack >= (int64_t)bytes) {
		if (__atomic_compare_exchange_n(&pool->slack, &slack, slack - (int64_t)bytes, false,
		                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	pool_end_taking(pool, bytes);
	return false;
}

void pool_end_taking(struct pool *pool, uint64_t bytes)
{
	__atomic_fetch_sub(&pool->taken, bytes, __ATOMIC_SEQ_CST);
}

void pool_look_for_slack(struct pool *pool)
{
	uint64_t used, usable = pool->reserved < pool->charged ? pool->reserved : pool->charged;

	if (!process_is_first_thread())
		SET(pool->crowded, true);
	/* Stops further takes. Earlier ones are in `taken`, or in the figure read after it. */
	__atomic_store_n(&pool->slack, 0, __ATOMIC_SEQ_CST);
	used = __atomic_load_n(&pool->taken, __ATOMIC_SEQ_CST);
	used += pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	/* First the driver must release what was not granted. */
	if (!pool->forced && !pool_is_over(pool) && usable > used)
		__atomic_store_n(&pool->slack, (int64_t)(usable - used), __ATOMIC_SEQ_CST);
}

static bool is_charged(const struct pool *pool)
{
	return __atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&pool->ordinal, __ATOMIC_RELAXED) >= 0 &&
	       (__atomic_load_n(&pool->graphs, __ATOMIC_RELAXED) ||
	        DRIVER_HAS(cuMemPoolGetAttribute));
}

void pool_update(struct pool *pool)
{
	(void)pool_look(pool);
	if (pool_is_over(pool) || pool->forced) {
		/* Trim to 0: with a part to keep, the driver may keep all (driver observation). */
		pool_trim(pool, 0);
		(void)pool_look(pool);
	}
	pool_look_for_slack(pool);
}

/* Called with the pool's lock held. Destroys an empty retired pool, and frees its node. */
static void destroy_if_empty(struct pool *pool)
{
	if (!pool->retired || pool->reserved || pool->pending)
		return;
	(void)DRIVER(cuMemPoolDestroy)(pool->handle);
	SET(pool->retired, false);
	__atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
}

/* Called with the pool's lock held. */
static void settle(struct pool *pool)
{
	if (!pool->handle || !is_charged(pool))
		return;
	pool_update(pool);
	destroy_if_empty(pool);
}

void pool_shrunk(struct pool *pool)
{
	if (!is_charged(pool))
		return;
	LOCKED(&pool->lock);
	if (pool->handle &&
	    (may_shrink(pool) ||
	     pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != pool->reserved))
		settle(pool);
}

void pool_shrunk_any(void)
{
	/* Set again for each pool that may still shrink. */
	__atomic_store_n(&at_hand.may_shrink, false, __ATOMIC_RELAXED);
	for (struct pool *pool = __atomic_load_n(&pools()->list, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if (!may_shrink(pool))
			continue;
		pool_shrunk(pool);
		if (__atomic_load_n(&pool->handle, __ATOMIC_RELAXED))
			note_if_it_may_shrink(pool);
	}
}

void pool_set_threshold(struct pool *pool, uint64_t bytes)
{
	__atomic_store_n(&pool->threshold, bytes, __ATOMIC_RELAXED);
	note_if_it_may_shrink(pool);
}

/* Trims the pools on this device, and releases the charges that they no longer need. */
static bool give_back(CUdevice ordinal)
{
	bool any = false;

	for (struct pool *pool = __atomic_load_n(&pools()->list, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		uint64_t before;

		/* Skip a locked pool: its thread updates it, and may be the caller. */
		if (__atomic_load_n(&pool->ordinal, __ATOMIC_RELAXED) != ordinal ||
		    !is_charged(pool) || !__atomic_load_n(&pool->charged, __ATOMIC_RELAXED) ||
		    !lock_try(&pool->lock))
			continue;
		if (pool->handle) {
			before = pool->charged;
			pool_trim(pool, 0);
			(void)pool_look(pool);
			pool_look_for_slack(pool);
			any |= pool->charged < before;
			destroy_if_empty(pool);
		}
		lock_give(&pool->lock);
	}
	return any;
}
UPCALL(grant_room, give_back);

bool pool_settle_all(CUdevice ordinal, bool anyway)
{
	bool over = false;

	for (struct pool *pool = __atomic_load_n(&pools()->list, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if (__atomic_load_n(&pool->ordinal, __ATOMIC_RELAXED) != ordinal ||
		    !is_charged(pool))
			continue;
		lock_take(&pool->growing);
		lock_take(&pool->lock);
		settle(pool);
		if (anyway && !__atomic_load_n(&pool->taken, __ATOMIC_SEQ_CST))
			pool_charge_anyway(pool);
		over |= pool_is_over(pool);
		lock_give(&pool->lock);
		lock_give(&pool->growing);
	}
	return over;
}

/* --- destruction ---------------------------------------------------------------------------- */

/* As the driver itself does when a current pool is destroyed (driver observation). */
static void make_default_current(CUmemoryPool handle, CUdevice ordinal)
{
	CUmemoryPool other;

	if (DRIVER_HAS(cuDeviceGetMemPool) && DRIVER_HAS(cuDeviceSetMemPool) &&
	    DRIVER(cuDeviceGetMemPool)(&other, ordinal) == CUDA_SUCCESS && other == handle &&
	    DRIVER(cuDeviceGetDefaultMemPool)(&other, ordinal) == CUDA_SUCCESS)
		(void)DRIVER(cuDeviceSetMemPool)(ordinal, other);
	for (int type = CU_MEM_ALLOCATION_TYPE_PINNED; type <= CU_MEM_ALLOCATION_TYPE_MANAGED;
	     type++) {
		CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};

		if (DRIVER_HAS(cuMemGetMemPool) && DRIVER_HAS(cuMemSetMemPool) &&
		    DRIVER(cuMemGetMemPool)(&other, &location, type) == CUDA_SUCCESS &&
		    other == handle &&
		    DRIVER(cuMemGetDefaultMemPool)(&other, &location, type) == CUDA_SUCCESS)
			(void)DRIVER(cuMemSetMemPool)(&location, type, other);
	}
}

/* Called with the pool's lock held. */
static void retire(struct pool *pool)
{
	uint64_t none = 0;
	int count = 0, mode = stream_capture_relaxed();

	(void)DRIVER(cuMemPoolSetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
	stream_capture_restored(&mode);
	if (DRIVER(cuDeviceGetCount)(&count) == CUDA_SUCCESS) {
		for (CUdevice ordinal = 0; ordinal < count; ordinal++)
			make_default_current(pool->handle, ordinal);
	}
	SET(pool->threshold, 0);
	__atomic_store_n(&pool->retired, true, __ATOMIC_RELEASE);
	note_if_it_may_shrink(pool);
}

CUresult pool_destroy(CUmemoryPool handle)
{
	struct pool *pool = pool_find(handle);
	CUresult result = CUDA_SUCCESS;

	if (!pool)
		return DRIVER(cuMemPoolDestroy)(handle);
	lock_take(&pool->lock);
	if (pool->made && is_charged(pool)) {
		pool_trim(pool, 0);
		(void)pool_look(pool);
	}
	if (pool->made && (pool->reserved || pool->pending))
		retire(pool);
	else if ((result = DRIVER(cuMemPoolDestroy)(handle)) == CUDA_SUCCESS)
		__atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
	lock_give(&pool->lock);
	pool_forget_current();
	return result;
}
