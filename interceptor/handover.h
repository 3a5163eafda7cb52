/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of this process that others may have, since it was exported. The driver holds it until all
 * have let go of it, and so does its charge, to this process.
 *
 * What was exported as a descriptor is held by the open file that it is of, wherever its
 * descriptors are; an importer of the slice keeps one for as long as it has anything of the memory.
 * So each export is a reference to the memory, until its file has left the set of those that are
 * watched (fileset.h). Where that cannot be told, the reference stays until the process ends: too
 * much rather than too little.
 *
 * What was given out by a name (the 64 bytes of an IPC handle, or of an allocation in a pool) is
 * held by those that opened it, each of which notes that in the ledger first (lender.h). When the
 * driver has freed it for this process, the notes are looked for.
 *
 * No allocation asks for any of this. This process looks again when it lets go of such memory,
 * before a charge is refused, and when the program asks what is free; and as long as it waits for
 * others, a thread does each second. In a process that imports memory, the thread sees that the
 * lender has died.
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
/* So was linear memory, or a pool's. */
void handover_lent(const void *name, const struct lent *lent);

/* With any lock held: memory is charged for others alone from now on. */
void handover_waits(void);

/* What this process no longer holds at an address, or of its pools: how much of that stays charged,
 * since others have it. */
uint64_t handover_kept_at(CUdeviceptr address, uint64_t bytes, CUdevice ordinal);
uint64_t handover_kept_of_pools(uint64_t bytes, CUdevice ordinal);
static inline uint64_t handover_kept(CUdeviceptr address, uint64_t bytes, CUdevice ordinal)
{
	return __atomic_load_n(&handover_seen.lends, __ATOMIC_RELAXED)
	           ? handover_kept_at(address, bytes, ordinal)
	           : 0;
}

/* With no lock held: give back what nobody has any more. */
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
