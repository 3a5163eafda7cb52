/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exported memory of this process. The driver holds such memory until all processes have released
 * it, and this process is charged for as long.
 *
 * Exports as descriptors: the open file holds the memory, wherever its descriptors are.
 * An importer of the slice keeps a descriptor as long as it uses the memory. So each export is a
 * reference to the memory, until its file has left the watched set (fileset.h). If the set cannot
 * tell, the reference stays until the process ends: a late release is safe.
 *
 * Exports by name (the 64 bytes of an IPC handle, or of an allocation in a pool): each process that
 * opens the name notes it in the ledger first (lender.h). Once the driver has freed the memory for
 * this process, those notes decide.
 *
 * Allocations do none of this. The process looks when it releases such memory, before it refuses a
 * charge, and when the program asks for the free memory. While it waits for other processes, a
 * thread looks each second. In an importer, the thread notices the death of the lender.
 */
#ifndef GPUSLICE_HANDOVER_H
#define GPUSLICE_HANDOVER_H

#include "cuda_abi.h"
#include "fileset.h"
#include "lock.h"
#include "map.h"

struct object;

/* One export of an object. */
struct exported {
	struct object *object;
	uint64_t name; /* 0: it is a file */
	bool watched;  /* which is in the set, or was */
	uint32_t look; /* the last at which it was there */
};

/* A name that was given out of memory that is no object. */
struct lent {
	CUdeviceptr address;
	CUdevice ordinal;
	uint64_t of_pool; /* as much as a pool may hold for it; 0: it is linear memory */
};

struct handovers {
	struct lock lock; /* guards what follows */
	uint32_t look;    /* the number of the last one at the set of files */
	uint64_t serial;  /* of the last export */
	MAP(struct exported) exports;
	MAP(struct lent) lent; /* by name */

	struct fileset files;
	uint32_t begun; /* the thread is */
	uint32_t work;  /* it has some; a futex */
};

/* Looked at on the way of frees, refusals and questions. A forked child may leave them, and finds
 * nothing. */
extern struct handover_seen {
	bool waits; /* there is memory that is charged for others alone */
	bool lends; /* a name was given out of memory that is no object */
} handover_seen;

/* An object was exported as a file, or by a name. */
void handover_file(CUmemGenericAllocationHandle handle, int descriptor);
void handover_name(CUmemGenericAllocationHandle handle, const void *name);
/* Note that linear memory, or memory of a pool, was exported by a name. */
void handover_lent(const void *name, const struct lent *lent);

/* Note that memory is charged for other processes alone. May be called with any lock held. */
void handover_waits(void);

/* Return how many bytes of freed memory stay charged because other processes have it: memory at an
 * address, or of the pools. */
uint64_t handover_kept_at(CUdeviceptr address, uint64_t bytes, CUdevice ordinal);
uint64_t handover_kept_of_pools(uint64_t bytes, CUdevice ordinal);
static inline uint64_t handover_kept(CUdeviceptr address, uint64_t bytes, CUdevice ordinal)
{
	return __atomic_load_n(&handover_seen.lends, __ATOMIC_RELAXED)
	           ? handover_kept_at(address, bytes, ordinal)
	           : 0;
}

/* With no lock held: give back the memory that no process has any more. */
void handover_look_now(void);
static inline void handover_look(void)
{
	if (__builtin_expect(__atomic_load_n(&handover_seen.waits, __ATOMIC_RELAXED), 0))
		handover_look_now();
}

/* With no lock held: there is a thread from now on, which handover_wake() has look each second. */
void handover_begin(void);
void handover_wake(void);

#endif
