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
 *
 * A pool that the program destroys while memory of it is in use goes when the last of that is
 * freed, and then only the driver knows. So it is retired: the driver keeps it, and is told to
 * destroy it when it has become empty, which pool_give_back() and each synchronisation look for.
 * Its handle cannot be another pool's before that. The nodes of this list are this file's alone.
 */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "process.h"

#define POOL_STEP (32ull << 20)
#define POOL_GRAIN 512ull
#define POOL_BLOCK (2ull << 20) /* the device's memory comes in pages of this size */
#define POOL_KNOWN 512

enum {
	POOL_ELSEWHERE = -1, /* in place of an ordinal: not on a device, so it costs nothing */
	POOL_UNSEEN = -2,    /* somebody must find out */
};

struct pool {
	/* What a warm allocation looks at, on one cache line. */
	CUmemoryPool handle; /* NULL: the node is free for another pool */
	/* Bytes that calls may take: free, reserved and granted, less `taken`. */
	int64_t slack;
	/* Bytes that calls took of it which are not judged yet, without those of a first thread
	 * alone. */
	uint64_t taken;
	uint64_t *allocations; /* this lane's counter on the device; NULL until the first request */
	CUdevice ordinal;      /* or POOL_ELSEWHERE */
	bool graphs;    /* the device's memory of graphs: not one that the driver calls a pool */
	bool made;      /* by the program, so that it can destroy it */
	bool retired;   /* which it has */
	bool crowded;   /* others than the first thread use it: slack is taken by atomics */
	enum kind kind; /* managed memory is listed for nobody */

	struct pool *next;
	/* Held by a call that may make the pool grow, from its grant until it is judged: what the
	 * pool reserves beyond the charge is that call's, or a later one's to judge. */
	struct lock growing;
	struct lock lock;
	uint64_t reserved; /* what the pool reserved at the last look */
	/* Charged for it: below `reserved` until the call that made it grow undoes that. */
	uint64_t charged;
	/* The part of `charged` beyond what was granted: free memory that the driver did not take
	 * back at once. No call may use it. */
	uint64_t forced;
	uint64_t pending;   /* the part of `charged` of a call that is in the driver now */
	uint64_t threshold; /* the pool keeps so much at a synchronisation */
	uint32_t shrunk;    /* how often it was seen to have let go of memory */
	/*
	 * Numbers of address blocks that were seen backed since `reserved` was last seen to change,
	 * each at its number modulo POOL_KNOWN. An allocation inside such blocks did not make the
	 * pool grow: then asking what it reserves (25 ns of a 700 ns pair) can be spared.
	 */
	uint64_t known[POOL_KNOWN];
};

struct pools {
	struct lock lock;                       /* guards the list; a pool has a lock of its own */
	struct pool *list;                      /* nodes are never unlinked: readers take no lock */
	struct pool *current[PROCESS_ORDINALS]; /* what cuMemAllocAsync draws on */
	/* How often all of `current` was forgotten: an answer of the driver's from before that is
	 * not kept. */
	uint64_t forgotten;
	struct pool *graphs[PROCESS_ORDINALS];
};

/* The pool with that handle, unless it is retired; pool_of() makes it known if it is not. NULL if
 * there is none, or no memory. */
struct pool *pool_find(struct process *process, CUmemoryPool handle);
struct pool *pool_of(struct process *process, CUmemoryPool handle);

/* Whether the program has destroyed it. */
bool pool_is_retired(struct process *process, CUmemoryPool handle);

/* Make a pool known. `ordinal` is its device or one of the two above. */
struct pool *pool_note(struct process *process, CUmemoryPool handle, CUdevice ordinal,
                       bool managed);

/* The program destroys it. */
CUresult pool_destroy(struct process *process, CUmemoryPool handle);

/* The pool that cuMemAllocAsync draws on for this device. */
struct pool *pool_current(struct process *process, CUdevice ordinal);
void pool_forget_current(struct process *process);

/* The device's memory of graphs. NULL if the driver has no figure for it, or no memory. */
struct pool *pool_of_graphs(struct process *process, CUdevice ordinal);
/* The same, if it was ever asked for. */
struct pool *pool_of_graphs_known(struct process *process, CUdevice ordinal);

/* What the driver says of the pool: one of CU_MEMPOOL_ATTR_*. */
uint64_t pool_attribute(const struct pool *pool, int which);
/* Have the driver let go of what is free in it beyond `keep` bytes; of graphs' memory, of all. */
void pool_trim(const struct pool *pool, uint64_t keep);

static inline bool pool_knows_block(struct pool *pool, uint64_t block)
{
	return __atomic_load_n(&pool->known[block % POOL_KNOWN], __ATOMIC_RELAXED) == block;
}

/* The same of more than two blocks; false of more than four: asking costs nothing in comparison
 * with using so much. */
bool pool_knows_blocks(struct pool *pool, uint64_t first, uint64_t last);

/* Whether all blocks of the allocation are known; and have them be. */
static inline bool pool_in_known_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes)
{
	uint64_t first = pointer / POOL_BLOCK, last = (pointer + bytes - 1) / POOL_BLOCK;

	if (__builtin_expect(last - first > 1, 0))
		return pool_knows_blocks(pool, first, last);
	return pool_knows_block(pool, first) && pool_knows_block(pool, last);
}
void pool_note_blocks(struct pool *pool, CUdeviceptr pointer, uint64_t bytes);

void pool_forget_blocks(struct pool *pool);

/*
 * With the pool's lock held: read the driver's figure, and release the charge that neither the pool
 * nor a pending call needs. Growth beyond the charge is charged if it fits. If it does not, nothing
 * is charged, and its size is returned: the call that made the pool grow undoes it. If another call
 * charged it, it would stay as free memory of the pool once it is undone, beyond the quota.
 */
uint64_t pool_look(struct pool *pool);

/* With the pool's lock held: charge its growth without asking the limit. For what no call can
 * undo. */
void pool_charge_anyway(struct pool *pool);

/* With the pool's lock held: have the driver let go of free memory, if the pool has more than what
 * was granted, and look. */
void pool_trim_excess(struct pool *pool);

/* The pool reserves more than is charged. */
static inline bool pool_is_over(const struct pool *pool)
{
	return __atomic_load_n(&pool->reserved, __ATOMIC_ACQUIRE) >
	       __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
}

/* With the pool's lock held: add `bytes` that were granted. */
void pool_add_charge(struct pool *pool, uint64_t bytes);

/* With the pool's lock held, after a look: read how much of it is free and charged. */
void pool_look_for_slack(struct pool *pool);

/*
 * Take `bytes` of the free memory before a call of the driver, and end that after it. Threads
 * together take no more than there is: the bytes are in `taken` until the driver's figures have
 * them.
 */
bool pool_take(struct pool *pool, uint64_t bytes);
void pool_end_taking(struct pool *pool, uint64_t bytes);

/* Look at a pool that may have shrunk; trim one that is over. */
void pool_shrunk(struct pool *pool);

/* The same for all of them, after a synchronisation: one look at a word if none can have. */
void pool_shrunk_any(void);
static inline void pool_synchronised(void)
{
	if (__builtin_expect(__atomic_load_n(&at_hand.may_shrink, __ATOMIC_RELAXED), 0))
		pool_shrunk_any();
}

/* The pool keeps so many bytes at a synchronisation. */
void pool_set_threshold(struct pool *pool, uint64_t bytes);

/*
 * Give back what the process's pools on this device do not need: trim their free memory, and settle
 * their charges to what they still reserve. Returns whether any bytes came back.
 */
bool pool_give_back(struct process *process, CUdevice ordinal);

/* Look at all pools on this device when no call makes them grow. Returns whether one is over. */
bool pool_look_all(struct process *process, CUdevice ordinal);
/* The same, and charge what no call can undo. */
void pool_settle_all(struct process *process, CUdevice ordinal);

#endif
