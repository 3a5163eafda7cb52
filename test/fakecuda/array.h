/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_ARRAY_H
#define FAKECUDA_ARRAY_H

#include "driver.h"
#include "vram.h"

struct physical;

struct CUarray_st {
	struct owned owned;
	struct vram vram;
	bool has_memory;
	struct tiles *tiles; /* of a sparse array, once memory was mapped into it */
	CUDA_ARRAY3D_DESCRIPTOR shape;
};

struct CUmipmappedArray_st {
	struct owned owned;
	struct vram vram;
	bool has_memory;
	struct physical *physical; /* the external memory in which it lies, or NULL */
};

/* mipmap.c. For a valid shape. With `physical` it takes nothing of the card, but holds that. */
CUresult mipmap_create(CUcontext context, CUmipmappedArray *out,
                       const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels,
                       struct physical *physical);

/* array.c. Sparse and deferred arrays get their memory when it is mapped into them. */
bool array_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape);

/* array_size.c */
/* Bytes of a texel, or of a block of 4 x 4 texels of a compressed format; 0: neither. */
unsigned array_texel_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, bool *compressed);
bool array_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* True if depth is a number of layers or faces, which is the same in smaller levels. */
bool array_is_layered(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* The largest number of levels of a mipmapped array of this shape. */
unsigned array_level_limit(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* The bytes of a valid shape before rounding to portions; false if that overflows. */
bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, size_t *bytes);

/* tile.c. Unmaps all tiles; NULL is accepted. */
void tiles_free(struct tiles *tiles);

#endif
