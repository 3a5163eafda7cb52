/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear memory that can leave the device and come back to the same address, in slices that move
 * themselves: what the driver would take for cuMemAlloc is created and mapped by its virtual memory
 * management instead. Neither costs more (driver observation, H100, 580.159.04: 40 us for 2 MiB,
 * where cuMemAlloc takes 93), and kernels run as fast on it.
 *
 * All that makes, ends or moves a piece passes the gate once, as a whole, and calls the driver
 * behind it: so whoever has shut the gate finds no piece half made.
 */
#ifndef GPUSLICE_PIECE_H
#define GPUSLICE_PIECE_H

#include "block.h"
#include "table.h"

/* The least that is made so: smaller memory lies in a block with other. */
#define PIECE_LEAST BLOCK_BYTES

/* The driver's function behind the gate's stub; and a function of ours that passes the gate, and is
 * behind it. */
#define BEHIND(name) ((__typeof__(&name))gate_behind((void *)DRIVER(name)))
#define THROUGH(function) ((__typeof__(&function))gate_of((void *)function))

/* Whether memory of that size is made so, of this process. */
bool piece_suits(CUdevice ordinal, uint64_t bytes);

/* cuMemAlloc_v2, for which `bytes`, a multiple of BLOCK_BYTES, were charged; the block is noted. */
CUresult piece_allocate(CUdeviceptr *pointer, CUdevice ordinal, uint64_t bytes);

/* cuMemFree of what block_leave() said to be a piece; what was charged is given back. */
CUresult piece_free(CUdeviceptr pointer);

/* True of the function behind the gate that piece_free() calls. */
bool piece_is_free(const void *function);

/* An owner is gone: end its pieces, for the driver does not. Before block_owner_gone(). */
void piece_owner_gone(uint64_t owner);

/* Whether the address is in a piece. `lent` is the call that would lend it to others, which the
 * program is told: its memory would not be where they look for it. */
bool piece_has(CUdeviceptr address, const char *lent);

/* Behind the gate: memory for the addresses of a piece, and no memory. */
CUresult piece_map(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes);
CUresult piece_unmap(CUdeviceptr pointer, uint64_t bytes);

#endif
