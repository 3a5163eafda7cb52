/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory of the virtual memory calls. An object lives while a handle, a mapping, a tile of
 * a sparse array, a multicast binding or an export refers to it. The last reference releases its
 * bytes.
 *
 * A reference is recorded before the call that makes it, and removed if that fails; one that a call
 * ends is taken out before it, and dropped after it. So each call takes the lock once. Memory here
 * is from mmap(): the program's malloc() may be the caller.
 */
#ifndef GPUSLICE_OBJECT_H
#define GPUSLICE_OBJECT_H

#include "grant.h"
#include "import.h"
#include "map.h"

/* A piece of physical memory, or a multicast object, which has none. */
struct object {
	/* Handles, mappings, bindings, exports, and calls ending one. */
	uint32_t references;
	uint32_t exports;      /* of the references */
	CUdevice ordinal;      /* its device; -1: not charged (a multicast object) */
	uint64_t bytes;        /* charged for it */
	uint64_t serial;       /* unique; 0: the object has ended */
	struct import *import; /* if imported, charged separately; else NULL */
	uint64_t handle;       /* its first handle */
	struct object *next;   /* in the free list */
};

struct handle {
	struct object *object;
	uint32_t uses; /* references of the program */
};

struct mapping {
	struct object *object;
	uint64_t bytes;
};

/* A part of an array or multicast object that holds memory. */
struct binding {
	struct object *object;
	uint64_t holder; /* the array or multicast object */
	uint64_t offset; /* of the part */
};

struct objects {
	_Alignas(64) struct lock lock; /* guards all fields; on one cache line with the next two */
	MAP(struct handle) handles;
	MAP(struct mapping) mapped;
	MAP(struct binding) bound; /* by a name of the part */
	bool any_bound;            /* a binding was ever made */
	struct object *free;
	uint64_t serial; /* of the last one */
};

/* If there is no memory to record it, its bytes stay charged until the process ends. */
void object_made(CUmemGenericAllocationHandle handle, CUdevice ordinal, uint64_t bytes);
void object_imported(CUmemGenericAllocationHandle handle, CUdevice ordinal, struct import *import);

/* The program has the handle again, of its object or the one mapped at the address. */
void object_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);

/* Around cuMemRelease. */
struct releasing {
	struct object *object; /* NULL: unknown, or ended */
	bool last;             /* then `was` is all that is left */
	struct object was;
};
void object_release(struct releasing *releasing, CUmemGenericAllocationHandle handle);
void object_released(const struct releasing *releasing, CUmemGenericAllocationHandle handle,
                     CUresult result);

/* Around cuMemMap. False if it is memory from outside the slice that does not fit. */
struct attempt {
	struct object *object; /* NULL: unknown */
	uint64_t charged;
};
bool object_map(struct attempt *attempt, CUdeviceptr address, uint64_t bytes, uint64_t offset,
                CUmemGenericAllocationHandle handle);
void object_not_mapped(const struct attempt *attempt, CUdeviceptr address);

/* Around cuMemUnmap, which may end several adjacent mappings, but not a part of one (driver
 * observation). */
struct unmapping {
	CUdeviceptr address;
	struct mapping one; /* the usual one; `object` is NULL if there is none */
	/* If other references keep its object, its own is dropped already, and the rest is done. */
	uint64_t bytes, serial;
	CUdevice ordinal;
	bool any_several; /* else `several` is not set */
	MAP(struct mapping) several;
};
void object_unmap(struct unmapping *unmapping, CUdeviceptr address, uint64_t bytes);
void object_unmapped_(struct unmapping *unmapping, CUresult result);
/* Returns whether this may have ended the object. */
static inline bool object_unmapped(struct unmapping *unmapping, CUresult result)
{
	if (__builtin_expect(unmapping->serial && result == CUDA_SUCCESS, 1))
		return false;
	object_unmapped_(unmapping, result);
	return true;
}

/* Some memory is charged for other processes alone. A stale value in a forked child is harmless.
 * May be set with any lock held. */
extern bool objects_waiting;
void objects_set_waiting(void);

/* Exports (handover.h). object_export() adds one to a handle's object; NULL if there is none. An
 * object waits if only exports keep it: object_keep() makes such a one, or adds an export to
 * `object`. */
struct object *object_export(CUmemGenericAllocationHandle handle);
struct object *object_keep(struct object *object, CUdevice ordinal, uint64_t bytes);
void object_unexport(struct object *object);
bool object_waits(const struct object *object);

/* Bindings: `holder` is the handle of the array or multicast object, `part` names the part, perhaps
 * by the memory's device, `offset` is in bytes. A new binding of a part replaces the old. The
 * memory is the handle's, or that mapped at the address. */
typedef uint64_t (*part_function)(const void *data, CUdevice ordinal);
void object_bind(CUmemGenericAllocationHandle handle, CUdeviceptr address, uint64_t holder,
                 uint64_t offset, part_function part, const void *data);
void object_unbind(uint64_t part);

/* Drops a holder's bindings with offsets in [offset, offset + bytes), of memory on `device` (-1:
 * any). */
void objects_unbind(uint64_t holder, CUdevice device, uint64_t offset, uint64_t bytes);

#endif
