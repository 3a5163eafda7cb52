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
	struct device *device;           /* NULL: it holds no VRAM */
	bool is_default;
	bool destroyed; /* by the program; it goes with its last allocation */
	CUmemLocation location;
	int type;
	uint64_t max_size; /* 0: none */
	uint64_t threshold;
	uint64_t reserved, reserved_high;
	uint64_t used, used_high; /* as the attributes tell: what was asked for, not rounded */
	uint64_t live;            /* allocations */
	int reuse[3];             /* attributes 1 to 3 */
	int access[MACHINE_MAX_DEVICES];
	struct segment *segments;
};

/* pool.c */
CUmemoryPool pool_create(struct device *device, CUmemLocation location, int type);
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

#endif
