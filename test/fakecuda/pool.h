/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory pools. A pool holds VRAM in segments; allocations are extents of them, and
 * freed ones stay in the pool until it is trimmed.
 */
#ifndef FAKECUDA_POOL_H
#define FAKECUDA_POOL_H

#include "address.h"
#include "driver.h"

#define POOL_STEP (32 * MiB) /* the size of segments is a multiple of it */

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next; /* all pools of the process */
	struct device *device;           /* NULL: its segments hold no VRAM */
	bool is_default;
	bool destroyed; /* by the program; it ends with its last allocation */
	CUmemLocation location;
	int type;
	uint64_t max_size; /* 0: none */
	uint64_t threshold;
	uint64_t reserved, reserved_high;
	uint64_t used, used_high; /* the attributes' values: requested bytes, not rounded */
	int reuse[3];             /* attributes 1 to 3 */
	int handle_types;         /* allowed for exports */
	uint64_t object;          /* after an export; 0 before */
	unsigned hold;
	struct device *managed_on; /* the device with a managed pool's pages, or NULL */
	unsigned chunks, spare;    /* of those pages: all taken ones, and those in no segment */
	struct segment *segments;
};

/* pool.c */
CUmemoryPool pool_create(struct device *device, CUmemLocation location, int type);
/* True if there are addresses for another pool of up to that size (0: the card's). */
bool pool_fits(const struct device *device, uint64_t max_size);
CUmemoryPool pool_default(struct device *device);
CUmemoryPool pool_current(struct device *device);
void pool_destroy(CUmemoryPool pool);
bool pool_is_known(CUmemoryPool pool);
CUresult pool_allocate(CUmemoryPool pool, size_t size, CUstream stream, CUdeviceptr *out);
/* The extent can be used again by `stream` at once, by others after a wait for it. */
void pool_free(struct range *range, CUstream stream);
/*
 * For cuMemFree, which waits: any stream can use the extent at once, and the card gets back what
 * the pool does not need.
 */
void pool_free_now(struct range *range);
void pool_trim(CUmemoryPool pool, uint64_t keep);

/* Returns memory to pools and card after a wait for the stream. */
void pools_synchronise(struct device *device, CUstream stream);
/* Returns all unused memory to the card; true if there was any. */
bool pools_give_back(struct device *device);

CUmemoryPool pool_of(const struct range *range);
/* True if the card may use it: not pinned host memory. */
bool pool_may_touch(const struct range *range);
/* The machine's object for an allocation's segment; 0 if there is no room. */
uint64_t pool_share_segment(struct range *range);

/* pool_share.c. pool_is_known does not know pools of other processes. */
bool pool_import_destroy(CUmemoryPool pool); /* false if it is not imported */
/* Frees a range of cuMemPoolImportPointer, of kind RANGE_IMPORTED. */
void pool_import_free(struct range *range);

/* A program defines this to force an order of events: it is called before the function acts. */
__attribute__((weak)) void fakecuda_point(const char *function);

static inline void pool_point(const char *function)
{
	if (fakecuda_point)
		fakecuda_point(function);
}

#endif
