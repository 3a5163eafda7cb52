/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_segment.h"

#include "hold.h"
#include "managed.h"
#include "stream.h"

#include <stdlib.h>

/* Addresses reserved for a segment, which grows in place. */
#define GROWTH_ROOM (1024 * MiB)

struct extent *pool_extent_of(struct range *range)
{
	return (struct extent *)((char *)range - offsetof(struct extent, range));
}

/* Releases bytes that are not shared. */
static void give_back(CUmemoryPool pool, uint64_t size)
{
	pool->reserved -= size;
	if (pool->device)
		device_release(pool->device, size);
	if (pool->managed_on)
		pool->spare += (unsigned)(size / MANAGED_CHUNK);
}

void pool_drop_segment(struct segment *segment)
{
	CUmemoryPool pool = segment->pool;
	struct extent *extent = segment->first;

	address_free(extent->range.start, segment->room);
	while (extent) {
		struct extent *next = extent->next;

		free(extent);
		extent = next;
	}
	if (segment->object) {
		object_let_go(segment->hold);
		pool->reserved -= segment->size;
	} else {
		give_back(pool, segment->size);
	}
	*segment->link = segment->next;
	if (segment->next)
		segment->next->link = segment->link;
	free(segment);
}

bool pool_is_awaited(const struct segment *segment)
{
	for (const struct extent *extent = segment->first; extent; extent = extent->next)
		if (extent->state == EXTENT_WAITING)
			return true;
	return false;
}

/*
 * Observed: a managed pool's pages are on the card as soon as they are allocated, and stay there
 * when the pool shrinks, until it is destroyed. On a full card they are in host memory.
 */
static void take_pages(CUmemoryPool pool, uint64_t size)
{
	unsigned chunks = (unsigned)(size / MANAGED_CHUNK);
	unsigned again = chunks < pool->spare ? chunks : pool->spare;

	pool->spare -= again;
	pool->chunks += managed_take(pool->managed_on, chunks - again);
}

static bool fits(const struct CUmemPoolHandle_st *pool, uint64_t size)
{
	return !pool->max_size || size <= pool->max_size - pool->reserved;
}

static void add_reserved(CUmemoryPool pool, uint64_t size)
{
	pool->reserved += size;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
}

struct segment *pool_grow(CUmemoryPool pool, uint64_t size)
{
	struct segment *segment = calloc(1, sizeof(*segment));
	struct extent *extent = calloc(1, sizeof(*extent));
	uint64_t room;

	size = round_up(size, POOL_STEP);
	room = size < GROWTH_ROOM ? GROWTH_ROOM : size;
	if (!segment || !extent || !fits(pool, size))
		goto no_memory;
	extent->range.start = address_reserve(room, ADDRESS_STEP);
	if (!extent->range.start)
		goto no_memory;
	if (pool->device && !device_charge(pool->device, size)) {
		address_free(extent->range.start, room);
		goto no_memory;
	}
	if (pool->managed_on)
		take_pages(pool, size);
	extent->range.kind = RANGE_POOL;
	extent->segment = segment;
	extent->size = size;
	segment->pool = pool;
	segment->size = size;
	segment->room = room;
	segment->first = extent;
	segment->next = pool->segments;
	segment->link = &pool->segments;
	if (segment->next)
		segment->next->link = &segment->next;
	pool->segments = segment;
	add_reserved(pool, size);
	return segment;
no_memory:
	free(extent);
	free(segment);
	return NULL;
}

/*
 * True if `stream` may use an extent that it did not free. By default the driver allows that once
 * the free has run on the card, or makes the new allocation wait for it.
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

struct extent *pool_find_extent(const struct segment *segment, uint64_t size, CUstream stream)
{
	struct extent *extent;

	if (segment->size - segment->used < size)
		return NULL;
	for (extent = segment->first; extent; extent = extent->next)
		if (extent->size >= size && may_reuse(extent, stream))
			return extent;
	return NULL;
}

static struct extent *append(struct segment *segment, struct extent *last)
{
	struct extent *extent = calloc(1, sizeof(*extent));

	if (!extent)
		return NULL;
	extent->segment = segment;
	extent->previous = last;
	extent->range.kind = RANGE_POOL;
	extent->range.start = segment->first->range.start + segment->size;
	last->next = extent;
	return extent;
}

/* Observed: 1 MiB and then 100 MiB take 4 steps, not 5. */
struct extent *pool_extend(CUmemoryPool pool, uint64_t need, CUstream stream)
{
	for (struct segment *s = pool->segments; s; s = s->next) {
		struct extent *last = s->first;
		uint64_t more;

		/* An exported segment is shared as it is. */
		if (s->object)
			continue;
		while (last->next)
			last = last->next;
		more = round_up(may_reuse(last, stream) ? need - last->size : need, POOL_STEP);
		if (more > s->room - s->size || !fits(pool, more))
			continue;
		if (pool->device && !device_charge_free(pool->device, more))
			return NULL;
		if (!may_reuse(last, stream))
			last = append(s, last);
		if (!last) {
			if (pool->device)
				device_release(pool->device, more);
			return NULL;
		}
		if (pool->managed_on)
			take_pages(pool, more);
		last->size += more;
		s->size += more;
		add_reserved(pool, more);
		return last;
	}
	return NULL;
}

bool pool_split(struct extent *extent, uint64_t size)
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

struct extent *pool_merge(struct extent *extent)
{
	if (alike(extent, extent->next))
		absorb_next(extent);
	if (alike(extent->previous, extent)) {
		extent = extent->previous;
		absorb_next(extent);
	}
	return extent;
}

void pool_end_waits(struct segment *segment, CUstream stream)
{
	for (struct extent *extent = segment->first; extent; extent = extent->next)
		if (extent->state == EXTENT_WAITING &&
		    (stream == STREAM_ALL || extent->stream == stream)) {
			extent->state = EXTENT_FREE;
			extent = pool_merge(extent);
		}
}

/* Makes a segment of its own from the extent on; NULL if there is no memory. */
static struct segment *cut_before(struct extent *extent)
{
	struct segment *old = extent->segment;
	struct segment *cut;

	if (!extent->previous)
		return old;
	cut = calloc(1, sizeof(*cut));
	if (!cut)
		return NULL;
	cut->pool = old->pool;
	cut->first = extent;
	extent->previous->next = NULL;
	extent->previous = NULL;
	for (struct extent *e = extent; e; e = e->next) {
		e->segment = cut;
		cut->size += e->size;
		if (e->state == EXTENT_USED)
			cut->used += e->size;
	}
	old->size -= cut->size;
	cut->room = old->room - old->size;
	old->room = old->size;
	old->used -= cut->used;
	cut->next = old->next;
	cut->link = &old->next;
	if (cut->next)
		cut->next->link = &cut->next;
	old->next = cut;
	return cut;
}

/* The last whole steps in an extent, up to `most`; false if there is none. */
static bool whole_steps(const struct extent *extent, uint64_t most, uint64_t *before,
                        uint64_t *size)
{
	uint64_t start = extent->range.start - extent->segment->first->range.start;
	uint64_t first = round_up(start, POOL_STEP);
	uint64_t end = (start + extent->size) / POOL_STEP * POOL_STEP;

	if (end <= first || !most)
		return false;
	if (end - first > most * POOL_STEP)
		first = end - most * POOL_STEP;
	*before = first - start;
	*size = end - first;
	return true;
}

/* The segment keeps the addresses, and can grow in place again. */
static void drop_end(struct extent *extent)
{
	struct segment *segment = extent->segment;

	extent->previous->next = NULL;
	segment->size -= extent->size;
	give_back(segment->pool, extent->size);
	free(extent);
}

void pool_shed(struct segment *segment, uint64_t keep, bool awaited_too)
{
	CUmemoryPool pool = segment->pool;
	struct extent *extent = segment->first;
	uint64_t before, size;

	/* An exported segment is shared as it is. */
	if (segment->object)
		return;
	while (extent && pool->reserved > keep) {
		struct extent *after;

		if (extent->state == EXTENT_USED ||
		    (extent->state == EXTENT_WAITING && !awaited_too) ||
		    !whole_steps(extent, (pool->reserved - keep) / POOL_STEP, &before, &size)) {
			extent = extent->next;
			continue;
		}
		if (before) {
			if (!pool_split(extent, before))
				return;
			extent = extent->next;
		}
		if (!pool_split(extent, size))
			return;
		after = extent->next;
		if (!after && extent->previous) {
			drop_end(extent);
			return;
		}
		if (!cut_before(extent) || (after && !cut_before(after)))
			return;
		pool_drop_segment(extent->segment);
		extent = after;
	}
}
