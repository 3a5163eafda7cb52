/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory pools known to this process, and their charges. Calls that make them grow are
 * in hook_pool.c.
 *
 * The charge is for what a pool reserves from the device: freed memory stays in it until the
 * program or a synchronisation trims it (release threshold). Pools grow in steps of 32 MiB (driver
 * observation, H100, 580.159.04). Nothing here synchronises.
 *
 * Graphs allocate from another pool on each device, with the same steps. It grows when a graph is
 * uploaded or launched, and shrinks only by cuDeviceGraphMemTrim.
 *
 * A pool destroyed by the program while its memory is in use would end with the last of it, without
 * notice. It is retired instead, and destroyed once it is empty, as refusals and
 * synchronisations check. Its handle is not reused before that. Only this module accesses the
 * list's nodes.
 */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "process.h"

#define POOL_STEP (32ull << 20)
#define POOL_GRAIN 512ull
#define POOL_BLOCK (2ull << 20) /* pages of the device's memory */
#define POOL_KNOWN 512

enum {
	POOL_ELSEWHERE = -1, /* instead of an ordinal: not on a device, not charged */
	POOL_UNSEEN = -2,    /* not known yet */
};

struct pool {
	/* On one cache line: read by an allocation from free memory. */
	CUmemoryPool handle; /* NULL: the node is free */
	/* Bytes that calls may take: free and granted, less `taken`. */
	int64_t slack;
	/* Bytes taken that the driver's figures may lack, except by a first thread alone. */
	uint64_t taken;
	uint64_t *allocations; /* this lane's counter; NULL until the first request */
	CUdevice ordinal;      /* or POOL_ELSEWHERE */
	bool graphs;           /* the device's graph memory, without a handle of the driver */
	bool made;             /* by the program */
	bool retired;          /* the program destroyed it */
	bool crowded;          /* used by other threads than the first: slack is taken by atomics */
	enum kind kind;        /* KIND_UNLISTED: managed */

	struct pool *next;
	/* Held by a call that may make the pool grow, from its grant until the growth is accounted
	 * for. Excess over the charge is that call's, or a later one's. */
	struct lock growing;
	struct lock lock;
	uint64_t reserved; /* at the last reading */
	/* Less than `reserved` until the call that made it grow undoes that. */
	uint64_t charged;
	/* The part of `charged` never granted: free memory that the driver did not release at once.
	 * No call may use it. */
	uint64_t forced;
	uint64_t pending;   /* the part of `charged` for a call in the driver now */
	uint64_t threshold; /* bytes kept at a synchronisation */
	uint32_t shrunk;    /* times it was seen to have shrunk */
	/* Address blocks seen backed since `reserved` last changed, each at its number modulo
	 * POOL_KNOWN. An allocation within them did not grow the pool, which spares a query (25 ns
	 * of a 700 ns pair). */
	uint64_t known[POOL_KNOWN];
};

struct pools {
	struct lock lock;                       /* guards the list; pools have their own */
	struct pool *list;                      /* nodes are never unlinked: readers take no lock */
	struct pool *current[PROCESS_ORDINALS]; /* the pool of cuMemAllocAsync */
	/* Times that `current` was cleared: older replies of the driver are discarded. */
	uint64_t forgotten;
	struct pool *graphs[PROCESS_ORDINALS];
};

/* Return the pool, unless it is retired; NULL if there is none. pool_of() adds an unknown one. */
struct pool *pool_find(CUmemoryPool handle);
struct pool *pool_of(CUmemoryPool handle);

bool pool_is_retired(CUmemoryPool handle);

/* Adds a pool. `ordinal` may be one of the two values above. */
struct pool *pool_note(CUmemoryPool handle, CUdevice ordinal, bool managed);

/* Destroys or retires a pool of the program. */
CUresult pool_destroy(CUmemoryPool handle);

/* Returns the pool that cuMemAllocAsync uses on this device. */
struct pool *pool_current(CUdevice ordinal);
void pool_forget_current(void);

/* Returns the pool of the device's graph memory. NULL if the driver has no figure for it, or no
 * memory. */
struct pool *pool_of_graphs(CUdevice ordinal);
/* The same, if used before. */
struct pool *pool_of_graphs_known(CUdevice ordinal);

/* Reads an attribute: one of CU_MEMPOOL_ATTR_*. */
uint64_t pool_attribute(const struct pool *pool, int which);
/* Makes the driver release free memory beyond `keep` bytes; all of it for graphs. */
void pool_trim(const struct pool *pool, uint64_t keep);

static inline bool pool_knows_block(struct pool *pool, uint64_t block)
{
	return __atomic_load_n(&pool->known[block % POOL_KNOWN], __ATOMIC_RELAXED) == block;
}

/* For more than two blocks. False for more than four: next to using them, a query is cheap. */
bool pool_knows_blocks(struct pool *pool, uint64_t first, uint64_t last);

/* Reports whether all blocks of the allocation are known. */
static inline bool pool_in_known_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes)
{
	uint64_t first = pointer / POOL_BLOCK, last = (pointer + bytes - 1) / POOL_BLOCK;

	if (__builtin_expect(last - first > 1, 0))
		return pool_knows_blocks(pool, first, last);
	return pool_knows_block(pool, first) && pool_knows_block(pool, last);
}
void pool_note_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes);

/* Called with the pool's lock held. Reads the driver's figure, and releases the charge that neither
 * the pool nor a pending call needs. Growth beyond the charge is charged if it fits, else its size
 * is returned, and the call that caused it undoes it. (If another call charged it, it would stay as
 * free memory beyond the quota.) */
uint64_t pool_look(struct pool *pool);

/* Called with the pool's lock held. Charges growth that no call can undo, without checking the
 * limit. */
void pool_charge_anyway(struct pool *pool);

/* Reports whether the pool reserves more than is charged. */
static inline bool pool_is_over(const struct pool *pool)
{
	return __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE) >
	       __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
}

/* Called with the pool's lock held. Adds `bytes` that were granted. */
void pool_add_charge(struct pool *pool, uint64_t bytes);

/* Called with the pool's lock held, after pool_look(). Computes how much is free and charged. */
void pool_look_for_slack(struct pool *pool);

/* Called with the pool's lock held. Does both, and trims the pool if it has more than was
 * granted. */
void pool_update(struct pool *pool);

/* Take `bytes` of the free memory before a call of the driver, and end that after it. The bytes are
 * in `taken` until the driver's figures have them, so threads never take more than there is. */
bool pool_take(struct pool *pool, uint64_t bytes);
void pool_end_taking(struct pool *pool, uint64_t bytes);

/* Updates a pool that may have shrunk, and trims one over its charge. */
void pool_shrunk(struct pool *pool);

/* The same for all pools, after a synchronisation. Reads one word if none can have shrunk. */
void pool_shrunk_any(void);
static inline void pool_synchronised(void)
{
	if (__builtin_expect(__atomic_load_n(&at_hand.may_shrink, __ATOMIC_RELAXED), 0))
		pool_shrunk_any();
}

void pool_set_threshold(struct pool *pool, uint64_t bytes);

/* Updates all pools on this device, between calls that grow them, and with `anyway` charges what no
 * call can undo. Returns whether one is over. */
bool pool_settle_all(CUdevice ordinal, bool anyway);

#endif
