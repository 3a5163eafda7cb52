/* SPDX-License-Identifier: Apache-2.0 */
/* A pool's memory: segments, which are cut into extents. */
#ifndef FAKECUDA_POOL_SEGMENT_H
#define FAKECUDA_POOL_SEGMENT_H

#include "pool.h"

enum extent_state {
	EXTENT_FREE,
	EXTENT_WAITING, /* freed, and usable only by its stream until a wait for that */
	EXTENT_USED,
};

/* Extents cover their segment without gaps, in order; two free neighbours are always merged. */
struct extent {
	struct extent *previous, *next;
	struct segment *segment;
	enum extent_state state;
	CUstream stream;
	uint64_t size;
	struct range range; /* its `size` is the requested one; `start` is always right */
};

struct segment {
	struct segment *next, **link;
	CUmemoryPool pool;
	uint64_t size, used;
	uint64_t room; /* addresses from its start on, for growth */
	struct extent *first;
	uint64_t object; /* once an allocation in it was exported (hold.h) */
	unsigned hold;
};

/* The extent of a range of kind RANGE_POOL. */
struct extent *pool_extent_of(struct range *range);

/* A new segment of at least that many free bytes; NULL if there is no room. */
struct segment *pool_grow(CUmemoryPool pool, uint64_t size);
/* Grows a segment in place and returns its last extent; NULL if none can grow. */
struct extent *pool_extend(CUmemoryPool pool, uint64_t need, CUstream stream);
/* Drops a segment without a used extent. */
void pool_drop_segment(struct segment *segment);

/*
 * Releases unused steps, with awaited ones if `awaited_too`, but keeps that many bytes of the pool.
 */
void pool_shed(struct segment *segment, uint64_t keep, bool awaited_too);

/* A large enough extent that the stream may use; NULL if there is none. */
struct extent *pool_find_extent(const struct segment *segment, uint64_t size, CUstream stream);
/* Cuts the extent to the size, with the rest as a new one; false if there is no memory. */
bool pool_split(struct extent *extent, uint64_t size);
/* Merges equally free neighbours; returns the merged extent. */
struct extent *pool_merge(struct extent *extent);

/* True if something in it was freed in a stream without a wait since. */
bool pool_is_awaited(const struct segment *segment);
void pool_end_waits(struct segment *segment, CUstream stream);

#endif
