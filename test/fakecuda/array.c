/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays, and how large one is. README.md says which of their sizes were observed. */
#include "array.h"

#include <stdlib.h>

#define LAST_BLOCK_COMPRESSED 0x9e /* BC7_UNORM_SRGB */
#define LAST_NORMALISED 0xcb       /* SNORM_INT16X4 */

/* Bytes of one channel of one texel; 0 for the formats that are not counted so. */
static unsigned channel_bytes(int format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	}
	/* In threes: 8 bits unsigned, 16 bits unsigned, 8 bits signed, 16 bits signed. */
	if (format >= CU_AD_FORMAT_UNORM_INT8X1 && format <= LAST_NORMALISED)
		return (format - CU_AD_FORMAT_UNORM_INT8X1) / 3 % 2 ? 2 : 1;
	return 0;
}

/* Bytes of one 4 × 4 block, or 0: BC1 (two formats) and BC4 (two) take 8, all others 16. */
static unsigned compressed_bytes(int format)
{
	int index = format - CU_AD_FORMAT_BC1_UNORM;

	if (format < CU_AD_FORMAT_BC1_UNORM || format > LAST_BLOCK_COMPRESSED)
		return 0;
	return index <= 1 || index == 6 || index == 7 ? 8 : 16;
}

bool array_linear_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t *bytes)
{
	size_t width = shape->Width;
	size_t height = shape->Height ? shape->Height : 1;
	size_t depth = shape->Depth ? shape->Depth : 1;
	unsigned block = compressed_bytes(shape->Format);
	unsigned texel = channel_bytes(shape->Format) * shape->NumChannels;
	size_t texels;

	if (shape->Format == CU_AD_FORMAT_NV12) {
		/* A plane of one byte per texel, and a half as large one of colour. */
		texel = 1;
		height += (height + 1) / 2;
	} else if (block) {
		texel = block;
		width = (width + 3) / 4;
		height = (height + 3) / 4;
	}
	return texel && !__builtin_mul_overflow(width, height, &texels) &&
	       !__builtin_mul_overflow(texels, depth, &texels) &&
	       !__builtin_mul_overflow(texels, texel, bytes) && *bytes;
}

bool array_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	bool channels = shape->NumChannels == 1 || shape->NumChannels == 2 ||
	                shape->NumChannels == 4 || shape->Format == CU_AD_FORMAT_NV12 ||
	                compressed_bytes(shape->Format);

	if (!shape->Width || !channels)
		return false;
	if (shape->Flags & CUDA_ARRAY3D_LAYERED)
		return shape->Depth != 0;
	return !(shape->Depth && !shape->Height);
}

bool array_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return !(shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

static void destroy_array(struct owned *owned)
{
	CUarray array = (CUarray)owned;

	if (array->has_memory)
		vram_give(&array->vram);
	free(array);
}

static CUresult create_array(CUcontext context, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUarray array;
	size_t bytes;

	if (!array_is_valid(shape) || !array_linear_bytes(shape, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	array = calloc(1, sizeof(*array));
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->shape = *shape;
	array->has_memory = array_takes_memory(shape);
	if (array->has_memory && !vram_take(context->device, bytes, &array->vram)) {
		free(array);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	context_own(context, &array->owned, destroy_array);
	*out = array;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !shape)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(create_array(context, out, shape));
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
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!array || array->is_level)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	context_disown(&array->owned);
	destroy_array(&array->owned);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray array)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result != CUDA_SUCCESS)
		return result;
	if (!array)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = array->shape;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray array)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	CUresult result;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	result = cuArray3DGetDescriptor_v2(&full, array);
	if (result == CUDA_SUCCESS)
		*out = (CUDA_ARRAY_DESCRIPTOR){.Width = full.Width,
		                               .Height = full.Height,
		                               .Format = full.Format,
		                               .NumChannels = full.NumChannels};
	return result;
}
