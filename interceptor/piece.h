/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear memory that can leave the device and return to the same address, in slices with processes
 * that move themselves: made by the driver's virtual memory management instead of cuMemAlloc. That
 * costs no more (driver observation, H100, 580.159.04: 40 us for 2 MiB, where cuMemAlloc takes 93),
 * and kernels run as fast.
 *
 * Functions that make, end or move a piece pass the gate once, as a whole, and call the driver
 * behind it. So no piece is incomplete while the gate is shut.
 */
#ifndef GPUSLICE_PIECE_H
#define GPUSLICE_PIECE_H

#include "block.h"
#include "table.h"

/* The minimum: smaller memory shares a block. */
#define PIECE_LEAST BLOCK_BYTES

/* Reports whether this process allocates that size as a piece. */
bool piece_suits(CUdevice ordinal, uint64_t bytes);

/* Call the next two by THROUGH(). cuMemAlloc_v2, with `bytes`, a multiple of BLOCK_BYTES, charged
 * already. Records the block. */
CUresult piece_allocate(CUdeviceptr *pointer, CUdevice ordinal, uint64_t bytes, uint64_t owner);

/* cuMemFree of what block_leave() found to be a piece. Releases its charge, during a capture later:
 * with the capture's end, the next free or a request that does not fit. */
CUresult piece_free(CUdeviceptr pointer);

/* Ends pieces freed during a capture. False if there are none, or a capture is under way. */
bool piece_end_freed(void);

/* Ends a gone context's pieces, since the driver does not. Before block_owner_gone(). */
void piece_owner_gone(uint64_t owner);

/* Returns the context of the piece that the address is in; NULL if it is in none. */
CUcontext piece_context(CUdeviceptr address);

/* Reports whether the address is in a piece. `lent` names a call that would share it, for a
 * warning: others would not find the memory. */
bool piece_has(CUdeviceptr address, const char *lent);

/* Behind the gate: back the addresses of a piece with memory, or free that. */
CUresult piece_map(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes);
CUresult piece_unmap(CUdeviceptr pointer, uint64_t bytes);

#endif
