/* SPDX-License-Identifier: Apache-2.0 */
/* How pools hold memory. The entry points are in pool_api.c and pool_stream.c. */
#include "pool.h"

#include "hold.h"
#include "managed.h"
#include "stream.h"

#include <stdlib.h>

#define POOL_UNIT 512

enum extent_state {
	EXTENT_FREE,
	EXTENT_WAITING, /* freed, but only for its stream until that has been waited for */
	EXTENT_USED,
};

/* Extents cover their segment without gaps, in order; two free neighbours are always merged. */
struct extent {
	struct extent *previous, *next;
	struct segment *segment;
	enum extent_state state;
	CUstream stream;
	uint64_t size;
	struct range range; /* `size` there is what was asked for; `start` is always right */
};

struct segment {
	struct segment *next, **link;
	CUmemoryPool pool;
	uint64_t size, used;
	struct extent *first;
	uint64_t object; /* once an allocation in it was exported (hold.h) */
	unsigned hold;
};

static CUmemoryPool pools;

static struct extent *extent_of(struct range *range)
{
	return (struct extent *)((char *)range - offsetof(struct extent, range));
}

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

static void drop_segment(struct segment *segment)
{
	CUmemoryPool pool = segment->pool;
	struct extent *extent = segment->first;

	address_free(extent->range.start, segment->size);
	while (extent) {
		struct extent *next = extent->next;

		free(extent);
		extent = next;
	}
	pool->reserved -= segment->size;
	if (segment->object)
		object_let_go(segment->hold);
	else if (pool->device)
		device_release(pool->device, segment->size);
	if (pool->managed_on)
		pool->spare += (unsigned)(segment->size / MANAGED_CHUNK);
	*segment->link = segment->next;
	if (segment->next)
		segment->next->link = segment->link;
	free(segment);
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
	free(pool);
}

static bool is_awaited(const struct segment *segment)
{
	for (const struct extent *extent = segment->first; extent; extent = extent->next)
		if (extent->state == EXTENT_WAITING)
			return true;
	return false;
}

/* Never below `keep`: of 64 MiB in two segments a trim to 40 MiB takes none. */
static void trim(CUmemoryPool pool, uint64_t keep, bool awaited_too)
{
	struct segment *segment, *next;

	for (segment = pool->segments; segment; segment = next) {
		next = segment->next;
		if (segment->used || pool->reserved - segment->size < keep)
			continue;
		if (awaited_too || !is_awaited(segment))
			drop_segment(segment);
	}
}

void pool_trim(CUmemoryPool pool, uint64_t keep)
{
	trim(pool, keep, true);
}

void pool_destroy(CUmemoryPool pool)
{
	pool->destroyed = true;
	pool_trim(pool, 0);
	if (pool->device && pool->device->current_pool == pool)
		pool->device->current_pool = NULL;
	if (!pool->live)
		forget_pool(pool);
}

/*
 * Observed: the pages of a managed pool are on the card as soon as they are allocated, and stay
 * there when the pool shrinks, until it is gone. On a full card they are in host memory.
 */
static void take_pages(CUmemoryPool pool, uint64_t size)
{
	unsigned chunks = (unsigned)(size / MANAGED_CHUNK);
	unsigned again = chunks < pool->spare ? chunks : pool->spare;

	pool->spare -= again;
	pool->chunks += managed_take(pool->managed_on, chunks - again);
}

static struct segment *grow(CUmemoryPool pool, uint64_t size)
{
	struct segment *segment = calloc(1, sizeof(*segment));
	struct extent *extent = calloc(1, sizeof(*extent));

	size = round_up(size, POOL_STEP);
	if (!segment || !extent)
		goto no_memory;
	if (pool->max_size && size > pool->max_size - pool->reserved)
		goto no_memory;
	extent->range.start = address_reserve(size, ADDRESS_STEP);
	if (!extent->range.start)
		goto no_memory;
	if (pool->device && !device_charge(pool->device, size)) {
		address_free(extent->range.start, size);
		goto no_memory;
	}
	if (pool->managed_on)
		take_pages(pool, size);
	extent->range.kind = RANGE_POOL;
	extent->segment = segment;
	extent->size = size;
	segment->pool = pool;
	segment->size = size;
	segment->first = extent;
	segment->next = pool->segments;
	segment->link = &pool->segments;
	if (segment->next)
		segment->next->link = &segment->next;
	pool->segments = segment;
	pool->reserved += size;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return segment;
no_memory:
	free(extent);
	free(segment);
	return NULL;
}

/*
 * Whether an extent that `stream` did not free itself is open to it: by default the driver takes
 * it once the free has run on the card, or lets the new allocation wait for that.
 */
static bool may_reuse(const struct extent *extent, CUstream stream)
{
	const int *reuse = extent->segment->pool->reuse;

	if (extent->state == EXTENT_FREE)
		return true;
	if (extent->state == EXTENT_USED)
		return false;
	return extent->stream == stream || reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC - 1] ||
	       reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES - 1];
}

static struct extent *find_extent(const struct segment *segment, uint64_t size, CUstream stream)
{
	struct extent *extent;

	if (segment->size - segment->used < size)
		return NULL;
	for (extent = segment->first; extent; extent = extent->next)
		if (extent->size >= size && may_reuse(extent, stream))
			return extent;
	return NULL;
}

static bool split(struct extent *extent, uint64_t size)
{
	struct extent *rest;

	if (extent->size == size)
		return true;
	rest = calloc(1, sizeof(*rest));
	if (!rest)
		return false;
	*rest = *extent;
	rest->range.start += size;
	rest->size -= size;
	rest->previous = extent;
	if (rest->next)
		rest->next->previous = rest;
	extent->next = rest;
	extent->size = size;
	return true;
}

static void absorb_next(struct extent *extent)
{
	struct extent *next = extent->next;

	extent->size += next->size;
	extent->next = next->next;
	if (extent->next)
		extent->next->previous = extent;
	free(next);
}

static bool alike(const struct extent *a, const struct extent *b)
{
	return a && b && a->state == b->state && a->state != EXTENT_USED &&
	       (a->state == EXTENT_FREE || a->stream == b->stream);
}

/* Merges with what is free in the same way on both sides; returns what holds the extent now. */
static struct extent *merge(struct extent *extent)
{
	if (alike(extent, extent->next))
		absorb_next(extent);
	if (alike(extent->previous, extent)) {
		extent = extent->previous;
		absorb_next(extent);
	}
	return extent;
}

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUstream stream, CUdeviceptr *out)
{
	uint64_t need = round_up(size, POOL_UNIT);
	struct extent *extent = NULL;

	if (need < size || (pool->device && need > device_capacity(pool->device)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (struct segment *s = pool->segments; s && !extent; s = s->next)
		extent = find_extent(s, need, stream);
	if (!extent) {
		struct segment *segment = grow(pool, need);

		if (!segment)
			return CUDA_ERROR_OUT_OF_MEMORY;
		extent = segment->first;
	}
	if (!split(extent, need))
		return CUDA_ERROR_OUT_OF_MEMORY;
	extent->range.size = size;
	if (!ranges_add(&allocations, &extent->range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	extent->state = EXTENT_USED;
	extent->segment->used += need;
	pool->live++;
	pool->used += size;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	*out = extent->range.start;
	return CUDA_SUCCESS;
}

static void free_extent(struct range *range, enum extent_state state, CUstream stream)
{
	struct extent *extent = extent_of(range);
	CUmemoryPool pool = extent->segment->pool;

	ranges_remove(&allocations, range);
	extent->segment->used -= extent->size;
	pool->live--;
	extent->state = state;
	extent->stream = stream;
	merge(extent);
	if (pool->destroyed) {
		pool_trim(pool, 0);
		if (!pool->live)
			forget_pool(pool);
	}
}

void pool_free(struct range *range, CUstream stream)
{
	extent_of(range)->segment->pool->used -= range->size;
	free_extent(range, EXTENT_WAITING, stream);
}

/* Observed: the attribute goes on counting what cuMemFree took out of the pool as used. */
void pool_free_now(struct range *range)
{
	CUmemoryPool pool = extent_of(range)->segment->pool;
	bool destroyed = pool->destroyed;

	free_extent(range, EXTENT_FREE, NULL);
	if (!destroyed)
		trim(pool, pool->threshold, false);
}

CUmemoryPool pool_of(const struct range *range)
{
	return extent_of((struct range *)range)->segment->pool;
}

uint64_t pool_share_segment(struct range *range)
{
	struct segment *segment = extent_of(range)->segment;
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

static void end_waits(struct segment *segment, CUstream stream)
{
	for (struct extent *extent = segment->first; extent; extent = extent->next)
		if (extent->state == EXTENT_WAITING &&
		    (stream == STREAM_ALL || extent->stream == stream)) {
			extent->state = EXTENT_FREE;
			extent = merge(extent);
		}
}

void pools_synchronise(struct device *device, CUstream stream)
{
	for (CUmemoryPool pool = pools; pool; pool = pool->next) {
		if ((pool->managed_on ? pool->managed_on : pool->device) != device)
			continue;
		for (struct segment *s = pool->segments; s; s = s->next)
			end_waits(s, stream);
		trim(pool, pool->threshold, false);
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
