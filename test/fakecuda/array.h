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

bool array_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape);
/* The shape's bytes without any padding; false if they overflow or the format is not known. */
bool array_linear_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t *bytes);
/* Sparse and deferred arrays get their memory when it is mapped into them. */
bool array_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape);

#endif
