/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. They are reserved in the process's own address space, without access. So they
 * are unique (as under the driver's unified addressing), are reused after a free, and a program
 * that dereferences one gets SIGSEGV. Only ranges that are copied into get host memory.
 */
#ifndef FAKECUDA_ADDRESS_H
#define FAKECUDA_ADDRESS_H

#include "driver.h"

#define ADDRESS_STEP (2 * MiB)

/* `size` is a multiple of ADDRESS_STEP, `alignment` a power of two; 0 if there is no room. */
CUdeviceptr address_reserve(size_t size, size_t alignment);
/* At `start` if that is free, else elsewhere. */
CUdeviceptr address_reserve_at(CUdeviceptr start, size_t size);
void address_free(CUdeviceptr start, size_t size);
/* Gives an address range host memory for copies. */
bool address_back(CUdeviceptr start, size_t size);
/* Makes two ranges the same bytes: those of the first. `*file` is the memory of both, 0 before the
 * first time. False if there is no memory. */
bool address_share(CUdeviceptr start, CUdeviceptr other, size_t size, int *file);
/* Drops the content of a range. */
void address_forget(CUdeviceptr start, size_t size);

enum range_kind {
	RANGE_DEVICE,
	RANGE_MANAGED,
	RANGE_POOL,
	RANGE_GRAPH,
	RANGE_MAPPED,
	RANGE_HOST,
	RANGE_OPENED,   /* another process's, by its IPC handle */
	RANGE_IMPORTED, /* another process's, of a pool */
	RANGE_EXTERNAL,
	RANGE_CODE, /* a module's arrays */
	RANGE_RESERVED,
};

/* A range of the address space to which pointers may point. */
struct range {
	CUdeviceptr start;
	size_t size;
	enum range_kind kind;
	CUcontext context; /* of its creation; NULL: it has none */
	bool sync_changed; /* SYNC_MEMOPS is not as it was at first */
};

/* Ranges that do not overlap, found by any address inside them. */
struct ranges {
	void *root;
};

extern struct ranges allocations; /* all kinds but RANGE_RESERVED */

bool ranges_add(struct ranges *ranges, struct range *range);
void ranges_remove(struct ranges *ranges, struct range *range);
struct range *ranges_at(const struct ranges *ranges, CUdeviceptr address);
/* Any range that overlaps [start, start + size). */
struct range *ranges_overlapping(const struct ranges *ranges, CUdeviceptr start, size_t size);

#endif
