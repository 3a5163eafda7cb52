/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory pools. A pool holds VRAM in segments; allocations are extents of them,
 * and what is freed stays in the pool until it is trimmed.
 */
#ifndef FAKECUDA_POOL_H
#define FAKECUDA_POOL_H

#include "address.h"
#include "driver.h"

#define POOL_STEP (32 * MiB) /* segments are multiples of it */

struct CUmemPoolHandle_st {
	struct CUmemPoolHandle_st *next; /* all pools of the process */
	struct device *device;           /* NULL: its segments hold no VRAM */
	bool is_default;
	bool destroyed; /* by the program; it goes with its last allocation */
	CUmemLocation location;
	int type;
	uint64_t max_size; /* 0: none */
	uint64_t threshold;
	uint64_t reserved, reserved_high;
	uint64_t used, used_high; /* as the attributes tell: what was asked for, not rounded */
	int reuse[3];             /* attributes 1 to 3 */
	int access[MACHINE_MAX_DEVICES];
	int handle_types; /* what it may be exported as */
	uint64_t object;  /* once it was; 0: not yet */
	unsigned hold;
	struct device *managed_on; /* where a pool of managed memory has its pages; NULL: nowhere */
	unsigned chunks, spare; /* of those pages: all that it has taken, and those in no segment */
	struct segment *segments;
};

/* pool.c */
CUmemoryPool pool_create(struct device *device, CUmemLocation location, int type);
/* Whether there are addresses for one more that may become so large (0: as the card). */
bool pool_fits(const struct device *device, uint64_t max_size);
CUmemoryPool pool_default(struct device *device);
CUmemoryPool pool_current(struct device *device);
void pool_destroy(CUmemoryPool pool);
bool pool_is_known(CUmemoryPool pool);
CUresult pool_allocate(CUmemoryPool pool, size_t size, CUstream stream, CUdeviceptr *out);
/* The extent may be used again by `stream` at once, by others once it has been waited for. */
void pool_free(struct range *range, CUstream stream);
/*
 * For cuMemFree, which waits: the extent may be used by anyone at once, and what the pool does not
 * need goes back to the card.
 */
void pool_free_now(struct range *range);
void pool_trim(CUmemoryPool pool, uint64_t keep);

/* What a wait for the stream gives back to pools and card. */
void pools_synchronise(struct device *device, CUstream stream);
/* Gives all that is unused to the card; true if that was anything. */
bool pools_give_back(struct device *device);

CUmemoryPool pool_of(const struct range *range);
/* Whether the card may: pinned memory of the host is closed to it until cuMemPoolSetAccess. */
bool pool_may_touch(const struct range *range, const struct device *device);
/* The machine's object for the segment that an allocation lies in; 0: there is no room. */
uint64_t pool_share_segment(struct range *range);

/* pool_share.c. Pools of other processes are not among those that pool_is_known knows. */
bool pool_import_destroy(CUmemoryPool pool); /* false: it is no import */
/* Gives back what cuMemPoolImportPointer made: a range of kind RANGE_IMPORTED. */
void pool_import_free(struct range *range);

/* A program that defines this forces an order of events: it is called before the function acts. */
__attribute__((weak)) void fakecuda_point(const char *function);

static inline void pool_point(const char *function)
{
	if (fakecuda_point)
		fakecuda_point(function);
}

#endif
