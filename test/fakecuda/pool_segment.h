/* SPDX-License-Identifier: Apache-2.0 */
/* How a pool holds memory: segments of it, cut into extents. */
#ifndef FAKECUDA_POOL_SEGMENT_H
#define FAKECUDA_POOL_SEGMENT_H

#include "pool.h"

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
	uint64_t room; /* addresses from its start on, for it to grow */
	struct extent *first;
	uint64_t object; /* once an allocation in it was exported (hold.h) */
	unsigned hold;
};

/* The extent of a range of kind RANGE_POOL. */
struct extent *pool_extent_of(struct range *range);

/* A new segment for at least that many bytes, all free; NULL: there is no room. */
struct segment *pool_grow(CUmemoryPool pool, uint64_t size);
/* What is needed at the end of a segment that can grow in place; NULL: none can. */
struct extent *pool_extend(CUmemoryPool pool, uint64_t need, CUstream stream);
/* One without a used extent. */
void pool_drop_segment(struct segment *segment);

/*
 * Gives back the steps in which nothing is, nor, unless `awaited_too`, is waited for, but keeps
 * that much of the pool.
 */
void pool_shed(struct segment *segment, uint64_t keep, bool awaited_too);

/* One that the stream may take; NULL: there is none that is large enough. */
struct extent *pool_find_extent(const struct segment *segment, uint64_t size, CUstream stream);
/* Cuts the extent to the size, and the rest of it off; false if there is no memory. */
bool pool_split(struct extent *extent, uint64_t size);
/* Merges with what is free in the same way on both sides; returns what holds the extent now. */
struct extent *pool_merge(struct extent *extent);

/* Whether something in it was freed in a stream that was not waited for. */
bool pool_is_awaited(const struct segment *segment);
void pool_end_waits(struct segment *segment, CUstream stream);

#endif
