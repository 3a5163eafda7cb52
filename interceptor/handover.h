/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exported memory of this process. The driver holds it until all processes have released it, and
 * this process is charged for as long.
 *
 * Exports as descriptors: the open file holds the memory, wherever its descriptors are. An importer
 * of the slice keeps a descriptor while it uses the memory. So an export is a reference until its
 * file has left the watched set (fileset.h). If the set cannot tell, the reference stays until the
 * process ends: a late release is safe.
 *
 * Exports by name (the 64 bytes of an IPC handle, or of an allocation in a driver pool): each
 * process that opens the name first notes it in the ledger (lender.h). Once the driver has freed
 * the memory for this process, those notes decide.
 *
 * The process checks when it releases such memory, before it refuses a charge, and when the program
 * queries the free memory; never in an allocation. While it waits for other processes, a thread
 * checks each second. In an importer, the thread notices the lender's death.
 */
#ifndef GPUSLICE_HANDOVER_H
#define GPUSLICE_HANDOVER_H

#include "cuda_abi.h"
#include "fileset.h"
#include "lock.h"
#include "map.h"
#include "object.h"

struct exported {
	struct object *object;
	uint64_t name; /* 0: it is a file */
	bool watched;  /* the file is in the set, or was */
	uint32_t look; /* the last check that found it there */
};

/* A name that was exported for memory that is no object. */
struct lent {
	CUdeviceptr address;
	CUdevice ordinal;
	uint64_t of_pool; /* the most that a driver pool may hold for it; 0: linear memory */
};

struct handovers {
	struct lock lock; /* guards what follows */
	uint32_t look;    /* number of the last check */
	uint64_t serial;  /* of the last export */
	MAP(struct exported) exports;
	MAP(struct lent) lent; /* by name */

	struct fileset files;
};

/* A name was exported for memory that is no object. Read by frees; a stale value in a forked child
 * is harmless. */
extern bool handover_lends;

void handover_file(CUmemGenericAllocationHandle handle, int descriptor);
void handover_name(CUmemGenericAllocationHandle handle, const void *name);
/* Note that memory other than an object was exported by a name. */
void handover_lent(const void *name, const struct lent *lent);

/* Return the bytes of freed memory, at an address or of the driver pools, that stay charged because
 * other processes have it. */
uint64_t handover_kept_at(CUdeviceptr address, uint64_t bytes, CUdevice ordinal);
uint64_t handover_kept_of_pools(uint64_t bytes, CUdevice ordinal);
static inline uint64_t handover_kept(CUdeviceptr address, uint64_t bytes, CUdevice ordinal)
{
	return __atomic_load_n(&handover_lends, __ATOMIC_RELAXED)
	           ? handover_kept_at(address, bytes, ordinal)
	           : 0;
}

/* Called with no lock held. Release memory that no process has any more. */
void handover_look_now(void);
static inline void handover_look(void)
{
	if (__builtin_expect(__atomic_load_n(&objects_waiting, __ATOMIC_RELAXED), 0))
		handover_look_now();
}

#endif
