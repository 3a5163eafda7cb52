/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the program's own cuMemCreate that can leave the device and come back to the same
 * addresses, in slices that move themselves. The program's handle would keep it on the device, so
 * the program gets a number of ours for it, and the driver's handle behind that is another one each
 * time that the memory returns. It is held for as long as the program has the number, or the memory
 * is mapped anywhere.
 *
 * What moves is an object that is mapped as a whole somewhere, where its device may write to it.
 * What was ever exported, or bound to anything but addresses, stays. Handles of all else (imports,
 * memory of the host, compressed memory, tile pools, multicast objects; what is for GPUDirect RDMA,
 * if the process sees a device for that; all of a process that does not move itself) are the
 * driver's own. (PyTorch and vLLM ask for RDMA whenever the card can do it.)
 *
 * The functions below that bear the names of the driver's stand in for those: each passes the gate
 * once, as a whole. What is charged is object.h's affair, to whom such a number is a handle as any.
 */
#ifndef GPUSLICE_MOVABLE_H
#define GPUSLICE_MOVABLE_H

#include "block.h"
#include "table.h"

/* The highest 16 bits of our numbers. The driver's handles are addresses of the process (driver
 * observation), and no address of x86-64 or aarch64, tagged or not, begins so. */
#define MOVABLE_MARK 0x9d5cull

struct movable {
	CUmemGenericAllocationHandle driver; /* 0 while the memory is away */
	CUmemAllocationProp properties;
	uint64_t bytes;
	uint32_t uses;     /* how often the program has the number */
	bool stays;        /* it never moves */
	CUdeviceptr first; /* of its places; 0: it is mapped nowhere */
};

/* Where it is mapped. */
struct movable_place {
	uint64_t number; /* of what */
	uint64_t bytes, offset, serial;
	CUdeviceptr next; /* of the same memory; 0 is the end */
	unsigned long long access;
};

struct movables {
	struct lock lock; /* guards all of this */
	MAP(struct movable) known;
	MAP(struct movable_place) places;
	uint64_t made, serial; /* the last ones' */
};

static inline bool movable_is(CUmemGenericAllocationHandle handle)
{
	return __builtin_expect(handle >> 48 == MOVABLE_MARK, 0);
}

/* Whether what this process makes so gets a number of ours. */
bool movable_suits(const CUmemAllocationProp *properties, unsigned long long flags);

CUresult movable_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                        const CUmemAllocationProp *properties);
CUresult movable_release(CUmemGenericAllocationHandle handle);
CUresult movable_map(CUdeviceptr address, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult movable_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);

/* In a process that moves itself, of any memory. */
CUresult movable_unmap(CUdeviceptr address, size_t bytes);
CUresult movable_retain(CUmemGenericAllocationHandle *handle, void *address);

/* The driver's handle of memory that stays on the device from now on, given to `taker`; 0 if there
 * is no such number. Another handle is itself. */
CUmemGenericAllocationHandle movable_stay_(CUmemGenericAllocationHandle handle, const char *taker);
static inline CUmemGenericAllocationHandle movable_stay(CUmemGenericAllocationHandle handle,
                                                        const char *taker)
{
	return movable_is(handle) ? movable_stay_(handle, taker) : handle;
}

/* The same of all that is mapped there. */
void movable_stay_at(CUdeviceptr address, size_t bytes, const char *taker);

/* Behind the gate, which is shut: what can move, as far as the list has room, with `owner` for a
 * context. Returns how much there is. */
size_t movable_list(struct block_at *list, size_t room, uint64_t owner);

/* The same: memory for all places of what that list says to be there, and no memory. */
CUresult movable_bring(CUdeviceptr pointer);
CUresult movable_take(CUdeviceptr pointer);

#endif
