/* SPDX-License-Identifier: Apache-2.0 */
/* Mipmapped arrays: one allocation for all levels. */
#include "array.h"
#include "physical.h"

#include <stdlib.h>

static void destroy_mipmap(struct owned *owned)
{
	CUmipmappedArray mipmap = (CUmipmappedArray)owned;

	if (mipmap->has_memory)
		vram_give(&mipmap->vram);
	if (mipmap->physical)
		physical_unmap(mipmap->physical);
	free(mipmap);
}

CUresult mipmap_create(CUcontext context, CUmipmappedArray *out,
                       const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels,
                       struct physical *physical)
{
	CUmipmappedArray mipmap;
	size_t bytes;

	if (levels > array_level_limit(shape))
		levels = array_level_limit(shape);
	if (!array_bytes(shape, levels, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	mipmap = calloc(1, sizeof(*mipmap));
	if (!mipmap)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mipmap->has_memory = !physical && array_takes_memory(shape);
	if ((physical && !physical_map(physical)) ||
	    (mipmap->has_memory && !vram_take(context->device, VRAM_ARRAY, bytes, &mipmap->vram))) {
		free(mipmap);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mipmap->physical = physical;
	context_own(context, &mipmap->owned, destroy_mipmap);
	*out = mipmap;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out,
                                         const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !shape || !levels || !array_is_valid(shape))
		return CUDA_ERROR_INVALID_VALUE;
	return mipmap_create(context, out, shape, levels, NULL);
}

CUDA_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	context_disown(&mipmap->owned);
	destroy_mipmap(&mipmap->owned);
	return CUDA_SUCCESS;
}
