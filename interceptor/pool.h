/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process knows of the driver's memory pools, and what it has charged for them.
 * hook_pool.c has the calls that make them grow.
 *
 * What counts is what a pool reserves from the device, not what the program takes from the pool:
 * freed memory stays in the pool until it is trimmed, by the program or at a synchronisation
 * (release threshold). A pool grows by whole steps of 32 MiB (driver observation, H100,
 * 580.159.04). Nothing here ever synchronises.
 *
 * What graphs allocate is kept by the driver in a pool of its own for each device, with the same
 * steps, that grows when a graph is uploaded or launched and shrinks only when it is trimmed
 * (cuDeviceGraphMemTrim). It is accounted for as one more pool.
 */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "process.h"

#define POOL_STEP (32ull << 20)
#define POOL_GRAIN 512ull
#define POOL_BLOCK (2ull << 20) /* the device's memory comes in pages of this size */
#define POOL_KNOWN 512

struct pool {
	struct pool *next;
	CUmemoryPool handle; /* NULL: destroyed, the node is free for another pool */
	bool graphs;      /* the device's memory of graphs: not one that the driver calls a pool */
	CUdevice ordinal; /* -1: not on a device (host, managed, imported): costs nothing */
	struct lock lock;
	uint64_t reserved;  /* what the pool reserved when we last looked */
	uint64_t charged;   /* == reserved + pending, but while a growth is settled */
	uint64_t pending;   /* charged for growth by calls that are in the driver now */
	uint64_t threshold; /* the pool keeps so much at a synchronisation */
	uint32_t shrunk;    /* how often it was seen to have let go of memory */
	/* At least so many bytes are free in what is reserved. A hint: threads may overwrite one
	 * another's subtraction, and what it gets wrong is seen by look_after(). */
	int64_t slack;
	uint64_t *allocations; /* this lane's counter on the device; NULL until the first request */
	/*
	 * Numbers of address blocks that were seen backed since `reserved` was last seen to change,
	 * each at its number modulo POOL_KNOWN. An allocation inside such blocks did not make the
	 * pool grow: then asking what it reserves (25 ns of a 700 ns pair) can be spared.
	 */
	uint64_t known[POOL_KNOWN];
};

/* The pool with that handle; pool_of() makes it known if it is not. NULL if there is none, or no
 * memory. */
struct pool *pool_find(struct process *process, CUmemoryPool handle);
struct pool *pool_of(struct process *process, CUmemoryPool handle);

/* Make a pool known. `ordinal` is its device, -1 if it is not on one, less to have that found out.
 */
struct pool *pool_add(struct process *process, CUmemoryPool handle, CUdevice ordinal);

/* The pool that cuMemAllocAsync draws on for this device. */
struct pool *pool_current(struct process *process, CUdevice ordinal);
void pool_forget_current(struct process *process);

/* The device's memory of graphs. NULL if the driver has no figure for it, or no memory. */
struct pool *pool_of_graphs(struct process *process, CUdevice ordinal);

/* What the driver says of the pool: one of CU_MEMPOOL_ATTR_*. */
uint64_t pool_attribute(const struct pool *pool, int which);

/* Whether all blocks of the allocation are known; they are from now on, if `note`. */
static inline bool pool_in_known_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes,
                                        bool note)
{
	uint64_t first = pointer / POOL_BLOCK, last = (pointer + bytes - 1) / POOL_BLOCK;

	/* Asking costs nothing in comparison with using so much. */
	if (last - first >= 4)
		return false;
	for (uint64_t block = first; block <= last; block++) {
		uint64_t *known = &pool->known[block % POOL_KNOWN];

		if (note)
			__atomic_store_n(known, block, __ATOMIC_RELAXED);
		else if (__atomic_load_n(known, __ATOMIC_RELAXED) != block)
			return false;
	}
	return true;
}

void pool_forget_blocks(struct pool *pool);

/*
 * With the pool's lock held: make the charge what the pool reserves now, plus what is
 * pending. Growth that nobody charged before (the pool was fragmented, or its free memory belonged
 * to another stream's future) is charged if it fits; `false` if it does not. With `anyway` it is
 * charged in any case, for the driver holds it.
 */
bool pool_settle(struct pool *pool, bool anyway);

/* With the pool's lock held: find out how much of it is free. */
void pool_look_for_slack(struct pool *pool);

/* Settle a pool that may have shrunk. */
void pool_shrunk(struct pool *pool);

/*
 * Give back what the process's pools on this device do not need: trim their free memory, and settle
 * their charges to what they still reserve. Returns whether any bytes came back.
 */
bool pool_give_back(struct process *process, CUdevice ordinal);

/* Settle the charges of all pools on this device to what they reserve now. */
void pool_settle_all(struct process *process, CUdevice ordinal);

#endif
