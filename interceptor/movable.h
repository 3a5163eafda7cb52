/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the program's cuMemCreate that can leave the device and return to the same addresses,
 * in slices with processes that move themselves. The program gets a number of ours, since a
 * driver's handle would keep the memory on the device. The handle behind it is new each time the
 * memory returns, and is kept while the program has the number or the memory is mapped.
 *
 * An object can move if it is mapped as a whole, with write access for its device, and was never
 * exported, nor bound to anything but addresses. All else has the driver's handles: imports, host
 * memory, compressed memory, tile pools, multicast objects, memory for GPUDirect RDMA if the
 * process sees an RDMA device, memory of a process that does not move itself. (PyTorch and vLLM
 * request RDMA whenever the card supports it.)
 *
 * The functions named after the driver's replace those, and pass the gate (gate.h) once, as a
 * whole.
 * Charging is in object.h, for which such a number is like any handle.
 */
#ifndef GPUSLICE_MOVABLE_H
#define GPUSLICE_MOVABLE_H

#include "block.h"
#include "table.h"

/* The high 16 bits of our numbers. The driver's handles are addresses (driver observation), and no
 * address of x86-64 or aarch64, tagged or not, begins so. */
#define MOVABLE_MARK 0x9d5cull

struct movable {
	CUmemGenericAllocationHandle driver; /* 0 while the memory is on the host */
	CUmemAllocationProp properties;
	uint64_t bytes;
	uint32_t uses;     /* references of the program */
	bool stays;        /* never moves */
	CUdeviceptr first; /* its first place; 0: not mapped */
};

struct movable_place {
	uint64_t number; /* of the mapped object */
	uint64_t bytes, offset, serial;
	CUdeviceptr next; /* the object's next place; 0: none */
	unsigned long long access;
};

struct movables {
	struct lock lock; /* guards all fields */
	MAP(struct movable) known;
	MAP(struct movable_place) places;
	uint64_t made, serial; /* the last ones assigned */
};

static inline bool movable_is(CUmemGenericAllocationHandle handle)
{
	return __builtin_expect(handle >> 48 == MOVABLE_MARK, 0);
}

/* Reports whether cuMemCreate returns a number of ours. */
bool movable_suits(const CUmemAllocationProp *properties, unsigned long long flags);

/* For handles of ours. Call them by THROUGH(). */
CUresult movable_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                        const CUmemAllocationProp *properties);
CUresult movable_release(CUmemGenericAllocationHandle handle);
CUresult movable_map(CUdeviceptr address, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult movable_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);

/* For any memory. */
CUresult movable_unmap(CUdeviceptr address, size_t bytes);
CUresult movable_retain(CUmemGenericAllocationHandle *handle, void *address);

/* Keeps the memory on the device from now on, since `taker` gets it, and returns the driver's
 * handle; 0 if there is none. Other handles are returned as they are. */
CUmemGenericAllocationHandle movable_stay_(CUmemGenericAllocationHandle handle, const char *taker);
static inline CUmemGenericAllocationHandle movable_stay(CUmemGenericAllocationHandle handle,
                                                        const char *taker)
{
	return movable_is(handle) ? movable_stay_(handle, taker) : handle;
}

/* The same for all that is mapped in the range. */
void movable_stay_at(CUdeviceptr address, size_t bytes, const char *taker);

/* Called with the gate shut. Lists what can move, up to `room`, with `owner` as its context.
 * Returns how much there is. */
size_t movable_list(struct block_at *list, size_t room, uint64_t owner);

/* Called with the gate shut. Allocate and map, or unmap and free, all places of a listed object. */
CUresult movable_bring(CUdeviceptr pointer);
CUresult movable_take(CUdeviceptr pointer);

#endif
