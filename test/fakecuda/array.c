/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays as objects. array_size.c has their sizes. */
#include "array.h"

#include <stdlib.h>

bool array_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return !(shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

static void destroy_array(struct owned *owned)
{
	CUarray array = (CUarray)owned;

	if (array->has_memory)
		vram_give(&array->vram);
	tiles_free(array->tiles);
	free(array);
}

static CUresult create_array(CUcontext context, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUarray array;
	size_t bytes;

	if (!array_is_valid(shape) || !array_bytes(shape, 1, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	array = calloc(1, sizeof(*array));
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->shape = *shape;
	array->has_memory = array_takes_memory(shape);
	if (array->has_memory && !vram_take(context->device, VRAM_ARRAY, bytes, &array->vram)) {
		free(array);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context_own(context, &array->owned, destroy_array);
	*out = array;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !shape)
		return CUDA_ERROR_INVALID_VALUE;
	return create_array(context, out, shape);
}

CUDA_API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	if (!shape)
		return CUDA_ERROR_INVALID_VALUE;
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels};
	return cuArray3DCreate_v2(out, &full);
}

CUDA_API CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	if (!shape)
		return CUDA_ERROR_INVALID_VALUE;
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Depth = shape->Depth,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels,
	                                 .Flags = shape->Flags};
	return cuArray3DCreate_v2(out, &full);
}

CUDA_API CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;

	if (!shape)
		return CUDA_ERROR_INVALID_VALUE;
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels};
	return cuArray3DCreate_v2(out, &full);
}

CUDA_API CUresult cuArrayDestroy(CUarray array)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!array)
		return CUDA_ERROR_INVALID_HANDLE;
	context_disown(&array->owned);
	destroy_array(&array->owned);
	return CUDA_SUCCESS;
}
