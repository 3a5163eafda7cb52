/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory, as the virtual memory calls know it: pieces that live as long as anything
 * refers to them, be it a handle, a mapping, a tile of a sparse array, a multicast binding, or an
 * export that others may have. Only the last of them gives the bytes back.
 *
 * A reference is noted before the driver's call that makes it, and taken back if that fails; one
 * that a call ends is taken out before it, and what was the last is given back after it. So a call
 * takes the lock once. Memory for all this is mapped: the program's malloc() may be what calls us.
 */
#ifndef GPUSLICE_OBJECT_H
#define GPUSLICE_OBJECT_H

#include "grant.h"
#include "import.h"
#include "map.h"

/* A piece of physical memory, or a multicast object, which is none. */
struct object {
	/* Handles, mappings, bindings, exports, and calls that are about to end one. */
	uint32_t references;
	uint32_t exports;      /* of them, the exports */
	CUdevice ordinal;      /* where; -1: nothing is charged (a multicast object) */
	uint64_t bytes;        /* charged for it */
	uint64_t serial;       /* of this object among all that used this memory; 0: it is gone */
	struct import *import; /* it was imported, which is charged apart; else NULL */
	uint64_t handle;       /* the value that it was first known by */
	struct object *next;   /* of those that are free to be used again */
};

struct handle {
	struct object *object;
	uint32_t uses; /* how often the program has this value */
};

struct mapping {
	struct object *object;
	uint64_t bytes;
};

/* A part of something else, an array or a multicast object, that holds memory. */
struct binding {
	struct object *object;
	uint64_t holder; /* whose part it is */
	uint64_t offset; /* of the part */
};

struct objects {
	/* On one cache line: all that the usual cases of a map and an unmap look at first. */
	_Alignas(64) struct lock lock; /* guards all of this */
	bool usual;                    /* these are surely this process's: see object.c */
	MAP(struct handle) handles;    /* by value */
	MAP(struct mapping) mapped;    /* by address */
	MAP(struct binding) bound;     /* by a name of the part */
	bool any_bound;                /* there was ever one */
	struct object *free;
	uint64_t serial; /* of the last one */
};

/* A new object that `handle` refers to. If there is no memory for it, what was charged for it stays
 * charged until the process ends. */
void object_made(CUmemGenericAllocationHandle handle, CUdevice ordinal, uint64_t bytes);
void object_imported(CUmemGenericAllocationHandle handle, CUdevice ordinal, struct import *import);

/* The program has the handle once more, of the object that it is of, or that is mapped at the
 * address. */
void object_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);

/* Around cuMemRelease. */
struct releasing {
	struct object *object; /* NULL: not known, or this was the last reference */
	bool last;             /* then only this is left of the object: */
	struct object was;
};
void object_release(struct releasing *releasing, CUmemGenericAllocationHandle handle);
void object_released(const struct releasing *releasing, CUmemGenericAllocationHandle handle,
                     CUresult result);

/* Around cuMemMap. False if it is memory from outside the slice that does not fit. */
struct attempt {
	struct object *object; /* NULL: not known */
	uint64_t charged;
};
bool object_map(struct attempt *attempt, CUdeviceptr address, uint64_t bytes, uint64_t offset,
                CUmemGenericAllocationHandle handle);
void object_not_mapped(const struct attempt *attempt, CUdeviceptr address);

/* The same in the usual case, and nothing that it does not need. NULL if it is not that: then
 * nothing is changed, and the one above is asked. */
struct object *object_map_usual(CUdeviceptr address, uint64_t bytes,
                                CUmemGenericAllocationHandle handle);

/*
 * Around cuMemUnmap, which may end several mappings that lie side by side; part of one it refuses
 * (driver observation). Those that were taken out are the usual one, or else a list.
 */
struct unmapping {
	CUdeviceptr address;
	struct mapping one; /* `object` is NULL if there is none */
	/* Of its object, if other references keep that: then `one` gave its own back already, and
	 * afterwards there is nothing to do. */
	uint64_t bytes, serial;
	CUdevice ordinal;
	bool any_several; /* else `several` is not set */
	MAP(struct mapping) several;
};
void object_unmap(struct unmapping *unmapping, CUdeviceptr address, uint64_t bytes);
void object_unmapped(struct unmapping *unmapping, CUresult result);

/* The same in the usual case: one mapping, of an object that other references keep. False if it is
 * not that: then nothing is changed. Only if the driver refuses, something is to be done after it.
 */
bool object_unmap_usual(struct unmapping *unmapping, CUdeviceptr address, uint64_t bytes);
void object_not_unmapped(struct unmapping *unmapping, CUdeviceptr address, CUresult result);

/*
 * Exports (handover.h). object_export() adds an export to the object of a handle; NULL if there is
 * none. object_unexport() removes one. An object waits if only exports keep it. object_keep() makes
 * a waiting object, or adds an export to the given one.
 */
struct object *object_export(CUmemGenericAllocationHandle handle);
struct object *object_keep(struct object *object, CUdevice ordinal, uint64_t bytes);
void object_unexport(struct object *object);
bool object_waits(const struct object *object);

/*
 * Bindings: `holder` is the handle of the array or multicast object, `part` names the part,
 * `offset` is in bytes. To bind a part anew drops what was bound there. What is bound is that
 * handle's memory, or what is mapped at that address; `part` may depend on its device.
 */
typedef uint64_t (*part_function)(const void *data, CUdevice ordinal);
void object_bind(CUmemGenericAllocationHandle handle, CUdeviceptr address, uint64_t holder,
                 uint64_t offset, part_function part, const void *data);
void object_unbind(uint64_t part);

/* Drop all bindings of a holder, of memory on `device` (-1: wherever), whose offset is in [offset,
 * offset + bytes). */
void objects_unbind(uint64_t holder, CUdevice device, uint64_t offset, uint64_t bytes);

#endif
