/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory, as the virtual memory calls know it: pieces that live as long as anything
 * refers to them, be it a handle, a mapping, a tile of a sparse array, or a multicast binding. Only
 * the last of them gives the bytes back.
 *
 * Everything here is guarded by process.vmm_lock, which the caller holds.
 */
#ifndef GPUSLICE_OBJECT_H
#define GPUSLICE_OBJECT_H

#include "process.h"

struct object {
	uint64_t bytes;    /* charged for it */
	CUdevice ordinal;  /* where; -1: nothing is charged (a multicast object) */
	uint64_t handle;   /* the value that it was first known by */
	uint32_t handles;  /* references by handles, of whatever value */
	uint32_t mappings; /* other references, and calls that are about to make or drop one */
	int exported;      /* the descriptor that it was last exported to, or -1 */
	bool borrowed;     /* from outside the slice: charged as far as it was ever mapped */
};

/* Values of process.handles: `owner` is the object, `uses` the references by that handle. Of
 * process.mappings: `bytes` the length. Of process.binds: `bytes` what it is bound to. */
static inline struct object *object_of(const struct map_value *value)
{
	return (struct object *)(uintptr_t)value->owner;
}

static inline struct map_value object_value(struct object *object, uint64_t bytes)
{
	return (struct map_value){.owner = (uint64_t)(uintptr_t)object, .bytes = bytes, .uses = 1};
}

/* A new object that `handle` refers to. NULL if there is no memory for it: then what was charged
 * for it stays charged until the process ends. */
struct object *object_new(struct process *process, CUmemGenericAllocationHandle handle,
                          CUdevice ordinal, uint64_t bytes);

/* The object that a handle refers to, or NULL if it is not known. */
struct object *object_find(struct process *process, CUmemGenericAllocationHandle handle);

/* The object that is mapped at an address, or NULL. */
struct object *object_mapped_at(struct process *process, CUdeviceptr address);

/* The object that was exported to that descriptor, or NULL. */
struct object *object_exported_to(struct process *process, int descriptor);

/* One reference more, or less, by a handle of that value. */
void object_add_handle(struct process *process, struct object *object,
                       CUmemGenericAllocationHandle handle);
void object_drop_handle(struct process *process, struct object *object,
                        CUmemGenericAllocationHandle handle);

/* Give back what nothing refers to. */
void object_drop_if_unused(struct process *process, struct object *object);

/*
 * Bindings: references by parts of something else, an array or a multicast object, whose handle
 * is `holder`. Only memory is bound, never a multicast object. `key` names the part, `offset` is in
 * bytes and counts in whole 2 MiB. To bind a part anew drops what was bound there.
 */
void object_bind(struct process *process, struct object *object, uint64_t holder, uint64_t key,
                 uint64_t offset);
void object_unbind(struct process *process, uint64_t key);

/* Drop all bindings of a holder, of memory on `device` (-1: wherever), whose offset is in [offset,
 * offset + bytes). */
void object_unbind_all(struct process *process, uint64_t holder, CUdevice device, uint64_t offset,
                       uint64_t bytes);

#endif
