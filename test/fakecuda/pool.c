/* SPDX-License-Identifier: Apache-2.0 */
/* Pools, and the effect of waits on them. The entry points are in pool_api.c and pool_stream.c. */
#include "pool.h"

#include "config.h"
#include "hold.h"
#include "managed.h"
#include "pool_segment.h"
#include "stream.h"

#include <stdlib.h>

#define POOL_UNIT 512

static CUmemoryPool pools;
static CUmemoryPool gone; /* kept, so that no later pool gets a destroyed one's handle */

CUmemoryPool pool_create(struct device *device, CUmemLocation location, int type)
{
	CUmemoryPool pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->device = device;
	pool->location = location;
	pool->type = type;
	if (type == CU_MEM_ALLOCATION_TYPE_MANAGED && location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		pool->managed_on = device_at(location.id);
	for (int i = 0; i < 3; i++)
		pool->reuse[i] = 1;
	pool->next = pools;
	pools = pool;
	return pool;
}

/* Observed: each pool reserves addresses for twice its maximum size, out of 128 TiB. On an H100
 * there can be 826 pools of the card's size, and 1021 of 64 GiB. */
#define ADDRESSES ((uint64_t)1 << 47)

static uint64_t addresses_of(const struct device *device, uint64_t max_size)
{
	return 2 * (max_size ? max_size : device_capacity(device));
}

bool pool_fits(const struct device *device, uint64_t max_size)
{
	uint64_t left = ADDRESSES;

	for (CUmemoryPool pool = pools; pool; pool = pool->next) {
		uint64_t taken = pool->device ? addresses_of(pool->device, pool->max_size) : 0;

		left -= taken < left ? taken : left;
	}
	return addresses_of(device, max_size) <= left;
}

CUmemoryPool pool_default(struct device *device)
{
	CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal};

	if (!device->default_pool) {
		device->default_pool = pool_create(device, here, CU_MEM_ALLOCATION_TYPE_PINNED);
		if (device->default_pool)
			device->default_pool->is_default = true;
	}
	return device->default_pool;
}

CUmemoryPool pool_current(struct device *device)
{
	return device->current_pool ? device->current_pool : pool_default(device);
}

bool pool_is_known(CUmemoryPool wanted)
{
	for (CUmemoryPool pool = pools; pool; pool = pool->next)
		if (pool == wanted)
			return !pool->destroyed;
	return false;
}

static void forget_pool(CUmemoryPool pool)
{
	CUmemoryPool *link = &pools;

	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	object_let_go(pool->hold);
	if (pool->managed_on)
		managed_give(pool->managed_on, pool->chunks);
	pool->next = gone;
	gone = pool;
}

/* Never below `keep`: a trim of 64 MiB in two steps to 40 MiB releases none. */
static void trim(CUmemoryPool pool, uint64_t keep, bool awaited_too)
{
	struct segment *segment, *next;

	for (segment = pool->segments; segment; segment = next) {
		next = segment->next;
		if (segment->used || pool->reserved - segment->size < keep ||
		    (!awaited_too && pool_is_awaited(segment)))
			pool_shed(segment, keep, awaited_too);
		else
			pool_drop_segment(segment);
	}
}

/* Observed: memory freed in an idle stream is released at once. */
void pool_trim(CUmemoryPool pool, uint64_t keep)
{
	trim(pool, keep, !config_is("FAKECUDA_TRIM", "waited"));
}

/*
 * The state of a pool after a wait. Observed: a destroyed pool keeps what is in use, in steps of
 * its own, and ends with its last allocation, after a wait for that.
 */
static void settle(CUmemoryPool pool)
{
	trim(pool, pool->destroyed ? 0 : pool->threshold, false);
	if (pool->destroyed && !pool->segments)
		forget_pool(pool);
}

void pool_destroy(CUmemoryPool pool)
{
	pool->destroyed = true;
	pool_trim(pool, 0);
	if (pool->device && pool->device->current_pool == pool)
		pool->device->current_pool = NULL;
	if (!pool->segments)
		forget_pool(pool);
}

/* Growth in place uses the free rest at a segment's end, so the card may have room for it and not
 * for a new segment. A failed attempt at a segment has released unused memory: growth is tried
 * again. */
static struct extent *grow(CUmemoryPool pool, uint64_t need, CUstream stream)
{
	struct extent *extent = pool_extend(pool, need, stream);
	struct segment *segment = extent ? NULL : pool_grow(pool, need);

	if (segment)
		return segment->first;
	return extent ? extent : pool_extend(pool, need, stream);
}

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUstream stream, CUdeviceptr *out)
{
	uint64_t need = round_up(size, POOL_UNIT);
	struct extent *extent = NULL;

	if (need < size || (pool->device && need > device_capacity(pool->device)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (struct segment *s = pool->segments; s && !extent; s = s->next)
		extent = pool_find_extent(s, need, stream);
	if (!extent)
		extent = grow(pool, need, stream);
	if (!extent || !pool_split(extent, need))
		return CUDA_ERROR_OUT_OF_MEMORY;
	extent->range.size = size;
	if (!ranges_add(&allocations, &extent->range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	extent->state = EXTENT_USED;
	extent->segment->used += need;
	pool->used += size;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	*out = extent->range.start;
	return CUDA_SUCCESS;
}

static void free_extent(struct range *range, enum extent_state state, CUstream stream)
{
	struct extent *extent = pool_extent_of(range);

	ranges_remove(&allocations, range);
	extent->segment->used -= extent->size;
	extent->state = state;
	extent->stream = stream;
	pool_merge(extent);
}

void pool_free(struct range *range, CUstream stream)
{
	pool_extent_of(range)->segment->pool->used -= range->size;
	free_extent(range, EXTENT_WAITING, stream);
}

/* Observed: the attribute still counts memory as used that cuMemFree took out of the pool. */
void pool_free_now(struct range *range)
{
	CUmemoryPool pool = pool_extent_of(range)->segment->pool;

	free_extent(range, EXTENT_FREE, NULL);
	settle(pool);
}

CUmemoryPool pool_of(const struct range *range)
{
	return pool_extent_of((struct range *)range)->segment->pool;
}

bool pool_may_touch(const struct range *range)
{
	const struct CUmemPoolHandle_st *pool = pool_of(range);

	return pool->device || pool->managed_on || pool->type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

uint64_t pool_share_segment(struct range *range)
{
	struct segment *segment = pool_extent_of(range)->segment;
	CUmemoryPool pool = segment->pool;
	struct object_info info = {.kind = OBJECT_SEGMENT,
	                           .device = NO_DEVICE,
	                           .size = segment->size,
	                           .address = segment->first->range.start,
	                           .location_type = pool->location.type,
	                           .location_id = pool->location.id};

	if (pool->device) {
		info.device = pool->device->machine;
		info.bytes = segment->size;
	}
	if (!segment->object)
		segment->object = object_create(&info, HOLD_HANDLE, &segment->hold);
	return segment->object;
}

void pools_synchronise(struct device *device, CUstream stream)
{
	CUmemoryPool pool, next;

	for (pool = pools; pool; pool = next) {
		struct device *where = pool->managed_on ? pool->managed_on : pool->device;

		next = pool->next;
		/* Pools of the host belong to every card. */
		if (where && where != device)
			continue;
		for (struct segment *s = pool->segments; s; s = s->next)
			pool_end_waits(s, stream);
		settle(pool);
	}
}

bool pools_give_back(struct device *device)
{
	bool any = false;

	for (CUmemoryPool pool = pools; pool; pool = pool->next) {
		uint64_t before = pool->reserved;

		if (pool->device != device)
			continue;
		pool_trim(pool, 0);
		any |= pool->reserved != before;
	}
	return any;
}
