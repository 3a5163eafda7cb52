/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory: calls that allocate from pools, and that make, trim, select and destroy
 * them. Possible growth is charged before a call; after it the charge is corrected to what the pool
 * reserves.
 */
#include "context.h"
#include "grant.h"
#include "hold.h"
#include "pool.h"
#include "state.h"
#include "stream.h"
#include "table.h"

struct request {
	CUdeviceptr *pointer;
	size_t bytes;
	CUmemoryPool handle; /* NULL: the current pool of the stream's device */
	CUstream stream;
	bool per_thread;
	uint64_t taken; /* bytes taken of the pool's free memory */
};

static inline uint64_t grain_of(size_t bytes)
{
	return (bytes + POOL_GRAIN - 1) & ~(POOL_GRAIN - 1);
}

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

/* Returns the error of a refused call. A stream made by the program has a context, even if none is
 * current. */
static CUresult refusal_of(const struct request *r)
{
	return (uintptr_t)r->stream > STREAM_PER_THREAD ? CUDA_ERROR_OUT_OF_MEMORY : grant_error();
}

/* Called with both of the pool's locks held, after growth that does not fit. The driver keeps
 * memory that its stream has not freed yet: it is charged without checking the limit, unless it may
 * be another call's growth. */
static CUresult undo_growth(struct pool *pool, const struct request *r)
{
	/* Memory freed here must not be taken. */
	__atomic_store_n(&pool->slack, 0, __ATOMIC_SEQ_CST);
	call_free(r);
	*r->pointer = 0;
	pool_trim(pool, 0);
	if (pool_look(pool) && __atomic_load_n(&pool->taken, __ATOMIC_SEQ_CST) == r->taken)
		pool_charge_anyway(pool);
	pool_look_for_slack(pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Called with both of the pool's locks held. Charges the growth of a successful call, or undoes the
 * call. */
static CUresult account_for_growth(struct pool *pool, const struct request *r)
{
	uint64_t over = pool_look(pool);
	bool granted = false;

	/* Make room. Only the second try reports a refusal: another call may undo its growth
	 * first. */
	for (int tries = 0; over && !granted && tries < 2; tries++) {
		uint64_t wish = over;

		lock_give(&pool->lock);
		granted = tries
		              ? grant(pool->ordinal, wish, pool->kind, LEDGER_CALL_POOL) == GRANTED
		              : grant_if_free(pool->ordinal, wish, pool->kind) == GRANTED;
		lock_take(&pool->lock);
		if (granted)
			pool_add_charge(pool, wish);
		over = pool_look(pool);
	}
	if (over && !granted)
		return undo_growth(pool, r);
	pool_look_for_slack(pool);
	return CUDA_SUCCESS;
}

/* Checks for unexpected growth. Growth covered only by the charge of a call in the driver is
 * accounted for when that has ended. */
static __attribute__((noinline)) CUresult check_for_growth(struct pool *pool,
                                                           const struct request *r)
{
	CUresult result;
	bool covered;

	lock_take(&pool->lock);
	covered = !pool_look(pool) && pool->reserved <= pool->charged - pool->pending;
	if (covered)
		pool_note_blocks(pool, *r->pointer, r->bytes);
	lock_give(&pool->lock);
	if (covered)
		return CUDA_SUCCESS;
	LOCKED(&pool->growing);
	lock_take(&pool->lock);
	result = account_for_growth(pool, r);
	lock_give(&pool->lock);
	return result;
}

static bool take_after_reading(struct pool *pool, uint64_t grain)
{
	LOCKED(&pool->lock);

	pool_update(pool);
	return pool_take(pool, grain);
}

/* Called with `growing` held. Charges the growth, and what the pool has beyond its charge, before
 * the call, and corrects the charge after it. */
static CUresult grow(struct pool *pool, const struct request *r, uint64_t growth)
{
	CUresult result;
	uint64_t over;

	lock_take(&pool->lock);
	over = pool_look(pool);
	lock_give(&pool->lock);
	if (grant(pool->ordinal, over + growth, pool->kind, LEDGER_CALL_ASYNC) != GRANTED)
		return refusal_of(r);
	lock_take(&pool->lock);
	pool->pending += growth;
	pool_add_charge(pool, over + growth);
	lock_give(&pool->lock);
	result = call_driver(r);
	if (result == CUDA_SUCCESS)
		grant_count(pool->ordinal);
	lock_take(&pool->lock);
	pool->pending -= growth;
	if (result == CUDA_SUCCESS) {
		result = account_for_growth(pool, r);
	} else {
		(void)pool_look(pool);
		pool_look_for_slack(pool);
	}
	lock_give(&pool->lock);
	return result;
}

static CUresult end_taking(struct pool *pool, const struct request *r, CUresult result)
{
	if (result == CUDA_SUCCESS && !pool_in_known_blocks(pool, *r->pointer, r->bytes))
		result = check_for_growth(pool, r);
	pool_end_taking(pool, r->taken);
	return result;
}

static __attribute__((noinline)) CUresult allocate_growing(struct pool *pool, struct request *r,
                                                           uint64_t grain)
{
	CUresult result;

	if (!take_after_reading(pool, grain)) {
		/* A captured call takes no memory now. */
		if (stream_records(r->stream, r->per_thread))
			return call_driver(r);
		lock_take(&pool->growing);
		if (!take_after_reading(pool, grain)) {
			result = grow(pool, r, (grain + POOL_STEP - 1) & ~(POOL_STEP - 1));
			lock_give(&pool->growing);
			return result;
		}
		lock_give(&pool->growing);
	}
	r->taken = grain;
	result = call_driver(r);
	if (result == CUDA_SUCCESS)
		grant_count(pool->ordinal);
	return end_taking(pool, r, result);
}

enum take {
	TAKE_COLD, /* there may be too little */
	TAKE_PLAIN,
	TAKE_SHARED, /* pool_end_taking() follows */
};

/* The common case, which must cost next to nothing: takes the bytes from the pool's free memory
 * before the call. */
static inline enum take take_warm(struct pool *pool, size_t bytes)
{
	uint64_t grain = grain_of(bytes);
	int64_t slack = __atomic_load_n(&pool->slack, __ATOMIC_RELAXED);

	/* 0: an empty request, or an overflow. */
	if (__builtin_expect(slack < 0 || grain - 1 >= (uint64_t)slack, 0))
		return TAKE_COLD;
	if (__builtin_expect(__atomic_load_n(&pool->crowded, __ATOMIC_RELAXED) ||
	                         !process_is_known_first_thread(),
	                     0))
		return pool_take(pool, grain) ? TAKE_SHARED : TAKE_COLD;
	__atomic_store_n(&pool->slack, slack - (int64_t)grain, __ATOMIC_RELAXED);
	return TAKE_PLAIN;
}

static __attribute__((noinline)) void count_from_other_thread(const struct pool *pool)
{
	uint32_t *full = ledger_count(__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED),
	                              process_is_first_thread());

	if (full)
		grant_retire_allocations(pool->ordinal, full);
}

/* Counts the call. Returns whether the pool certainly did not grow. */
static inline __attribute__((always_inline)) bool end_warm(struct pool *pool, CUdeviceptr pointer,
                                                           size_t bytes)
{
	if (__builtin_expect(process_is_known_first_thread(), 1)) {
		uint32_t *full =
		    ledger_count(__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED), true);

		if (__builtin_expect(full != NULL, 0))
			grant_retire_allocations(pool->ordinal, full);
	} else {
		count_from_other_thread(pool);
	}
	return pool_in_known_blocks(pool, pointer, bytes);
}

static CUresult allocate_cold(struct pool *pool, struct request *r)
{
	uint64_t grain = grain_of(r->bytes);

	if (!r->bytes)
		return call_driver(r);
	if (grain < r->bytes || grain > INT64_MAX - POOL_STEP)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return allocate_growing(pool, r, grain);
}

static CUresult allocate(struct process *process, struct pool *pool, struct request *r)
{
	enum take take;
	CUresult result;

	if (!process)
		return refusal_of(r);
	if (!pool || pool->ordinal < 0 || !DRIVER_HAS(cuMemPoolGetAttribute))
		return call_driver(r);
	if (!__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED)) {
		int device = process_device(process, pool->ordinal);

		if (device < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		__atomic_store_n(&pool->allocations,
		                 ledger_allocations_word(&process->held[device].account.slice),
		                 __ATOMIC_RELAXED);
	}
	if (!r->pointer)
		return call_driver(r);
	take = take_warm(pool, r->bytes);
	if (take == TAKE_COLD)
		return allocate_cold(pool, r);
	if (take == TAKE_SHARED)
		r->taken = grain_of(r->bytes);
	result = call_driver(r);
	if (result == CUDA_SUCCESS && !end_warm(pool, *r->pointer, r->bytes))
		result = check_for_growth(pool, r);
	if (take == TAKE_SHARED)
		pool_end_taking(pool, r->taken);
	return result;
}

/* Returns the device from which cuMemAllocAsync takes memory for this stream; handles below 3 are
 * the current context's default streams. -1 if no memory will be taken: during a capture, a query
 * for the device invalidates it (driver observation). */
static CUdevice stream_ordinal(CUstream stream, bool per_thread)
{
	CUdevice ordinal;

	if ((uintptr_t)stream > STREAM_PER_THREAD && !process_has_one_device()) {
		if (stream_records(stream, per_thread))
			return -1;
		if (per_thread && DRIVER_HAS(cuStreamGetDevice_ptsz) &&
		    DRIVER(cuStreamGetDevice_ptsz)(stream, &ordinal) == CUDA_SUCCESS)
			return ordinal;
		if (!per_thread && DRIVER_HAS(cuStreamGetDevice) &&
		    DRIVER(cuStreamGetDevice)(stream, &ordinal) == CUDA_SUCCESS)
			return ordinal;
	}
	return process_current_ordinal();
}

static inline struct pool *current_at_hand(CUdevice ordinal)
{
	return __atomic_load_n(&state.pools.current[ordinal], __ATOMIC_ACQUIRE);
}

/* Another pool became current during the call, and either may have grown: updates all, and undoes
 * the call if one is over. */
static __attribute__((noinline)) CUresult check_all_pools(const struct request *r)
{
	bool over = false;

	for (CUdevice ordinal = 0; ordinal < at_hand.devices; ordinal++) {
		(void)pool_current(ordinal);
		over |= pool_settle_all(ordinal, false);
	}
	if (!over)
		return CUDA_SUCCESS;
	call_free(r);
	*r->pointer = 0;
	for (CUdevice ordinal = 0; ordinal < at_hand.devices; ordinal++)
		(void)pool_settle_all(ordinal, true);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static __attribute__((noinline)) CUresult allocate_current(CUdeviceptr *pointer, size_t bytes,
                                                           CUstream stream, bool per_thread)
{
	struct request r = {
	    .pointer = pointer, .bytes = bytes, .stream = stream, .per_thread = per_thread};
	struct process *process = process_attached();
	CUdevice ordinal = stream_ordinal(stream, per_thread);
	struct pool *pool;
	CUresult result;

	if (ordinal < 0)
		return call_driver(&r);
	pool = process ? pool_current(ordinal) : NULL;
	result = allocate(process, pool, &r);
	if (result == CUDA_SUCCESS && process && ordinal < PROCESS_ORDINALS &&
	    current_at_hand(ordinal) != pool)
		return check_all_pools(&r);
	return result;
}

static __attribute__((noinline)) CUresult finish_rare(CUdeviceptr *pointer, size_t bytes,
                                                      CUstream stream, bool per_thread,
                                                      struct pool *pool, enum take take)
{
	struct request r = {.pointer = pointer,
	                    .bytes = bytes,
	                    .stream = stream,
	                    .per_thread = per_thread,
	                    .taken = take == TAKE_SHARED ? grain_of(bytes) : 0};
	CUresult result = end_taking(pool, &r, CUDA_SUCCESS);

	return result == CUDA_SUCCESS && current_at_hand(0) != pool ? check_all_pools(&r) : result;
}

/* With one device the pool is known. Rare cases are elsewhere, to keep this short. */
static inline __attribute__((always_inline)) CUresult
allocate_from_current(CUdeviceptr *pointer, size_t bytes, CUstream stream, bool per_thread)
{
	struct pool *pool = current_at_hand(0);
	enum take take;
	CUresult result;
	bool known;

	if (__builtin_expect(!pool || !process_has_one_device() || !pointer ||
	                         !__atomic_load_n(&pool->allocations, __ATOMIC_RELAXED) ||
	                         (take = take_warm(pool, bytes)) == TAKE_COLD,
	                     0))
		return allocate_current(pointer, bytes, stream, per_thread);
	result = per_thread ? DRIVER(cuMemAllocAsync_ptsz)(pointer, bytes, stream)
	                    : DRIVER(cuMemAllocAsync)(pointer, bytes, stream);
	known = result == CUDA_SUCCESS && end_warm(pool, *pointer, bytes);
	if (result == CUDA_SUCCESS && __builtin_expect(!known || current_at_hand(0) != pool, 0))
		return finish_rare(pointer, bytes, stream, per_thread, pool, take);
	if (__builtin_expect(take == TAKE_SHARED, 0))
		pool_end_taking(pool, grain_of(bytes));
	return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_from_current(pointer, bytes, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
	return allocate_from_current(pointer, bytes, stream, true);
}

static CUresult allocate_from(struct request *r)
{
	struct process *process = process_attached();

	if (process && pool_is_retired(r->handle))
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(process, process ? pool_of(r->handle) : NULL, r);
}

#define FROM_POOL(name, own)                                                                       \
	CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)      \
	{                                                                                          \
		struct request r = {.pointer = pointer,                                            \
		                    .bytes = bytes,                                                \
		                    .handle = pool,                                                \
		                    .stream = stream,                                              \
		                    .per_thread = own};                                            \
                                                                                                   \
		return pool ? allocate_from(&r) : DRIVER(name)(pointer, bytes, pool, stream);      \
	}

FROM_POOL(cuMemAllocFromPoolAsync, false)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, true)

/* Returns the device of a pool's memory; for managed memory the preferred or the current one. */
static CUdevice ordinal_at(const CUmemLocation *location, int type)
{
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return location->id;
	return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? process_current_ordinal() : POOL_ELSEWHERE;
}

static struct pool *note(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                         int type)
{
	if (result != CUDA_SUCCESS || !location)
		return NULL;
	return pool_note(*pool, ordinal_at(location, type), type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}

CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties)
{
	CUresult result = DRIVER(cuMemPoolCreate)(handle, properties);
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	pool = note(result, handle, &properties->location, properties->allocType);
	if (pool)
		pool->made = true;
	return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	uint64_t source = (uint64_t)(uintptr_t)handle;

	hold_source_leave(source);
	return hold_source_left(handle ? pool_destroy(handle) : DRIVER(cuMemPoolDestroy)(handle),
	                        source);
}

#define NOTES(name)                                                                                \
	CUresult name(CUmemoryPool *pool, CUmemLocation *location, int type)                       \
	{                                                                                          \
		CUresult result = DRIVER(name)(pool, location, type);                              \
                                                                                                   \
		(void)note(result, pool, location, type);                                          \
		return result;                                                                     \
	}

NOTES(cuMemGetDefaultMemPool)
NOTES(cuMemGetMemPool)

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct pool *pool = handle ? pool_find(handle) : NULL;
	CUresult result = DRIVER(cuMemPoolTrimTo)(handle, keep);

	if (pool)
		pool_shrunk(pool);
	return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	CUresult result = DRIVER(cuMemPoolSetAttribute)(handle, attribute, value);
	struct pool *pool;

	if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool = pool_of(handle);
		if (pool)
			pool_set_threshold(pool, *(const uint64_t *)value);
	}
	return result;
}

static CUresult current_changed(CUresult result)
{
	pool_forget_current();
	return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	return current_changed(DRIVER(cuDeviceSetMemPool)(device, pool));
}

CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	return current_changed(DRIVER(cuMemSetMemPool)(location, type, pool));
}
