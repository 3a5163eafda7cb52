/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_ARRAY_H
#define FAKECUDA_ARRAY_H

#include "driver.h"
#include "vram.h"

struct CUarray_st {
	struct owned owned;
	struct vram vram;
	bool has_memory;
	bool is_level; /* of a mipmapped array, and destroyed with that */
	CUDA_ARRAY3D_DESCRIPTOR shape;
};

/* array.c. Sparse and deferred arrays get their memory when it is mapped into them. */
bool array_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape);

/* array_size.c */
bool array_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* Depth is a number of layers or faces: they stay as many in smaller levels. */
bool array_is_layered(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* How many levels a mipmapped array of this shape can have. */
unsigned array_level_limit(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* What a valid shape takes of the card before it is rounded to portions; false if that overflows.
 */
bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, size_t *bytes);

#endif
