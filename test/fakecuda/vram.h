/* SPDX-License-Identifier: Apache-2.0 */
/*
 * VRAM in the card's real portions: above 1 MiB whole steps of 2 MiB; up to 1 MiB pieces of 2 MiB
 * blocks that the process's allocations on one card share, arrays and linear memory separately. A
 * block returns to the card with its last piece.
 */
#ifndef FAKECUDA_VRAM_H
#define FAKECUDA_VRAM_H

#include "driver.h"

#define VRAM_BLOCK (2 * MiB)
#define VRAM_SMALL (1 * MiB)

/* The machine's object and hold of memory that other processes may open (hold.h); 0: none. */
struct vram_share {
	uint64_t object;
	unsigned hold;
};

struct vram {
	struct device *device;
	uint64_t bytes;      /* of the card, unless it is a piece of a block */
	struct block *block; /* NULL: whole steps */
	unsigned first, count;
	struct vram_share share; /* of whole steps; a block has its own */
};

bool vram_take(struct device *device, enum vram_kind kind, size_t size, struct vram *out);
void vram_give(struct vram *vram);
/* The address of a piece of a block; 0 for whole steps: the caller has their address. */
CUdeviceptr vram_address(const struct vram *vram);
/*
 * Makes it an object of the machine, a piece with its whole block. `start` is the address of whole
 * steps. Returns the object, or 0 if there is no room.
 */
uint64_t vram_share(struct vram *vram, CUdeviceptr start);

#endif
