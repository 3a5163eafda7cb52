/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays: memory in the layout of the texture units, which is larger than its texels.
 *
 * Driver observation (H100, 580.159.04; test/conformance/array.c prints it): rows are padded to 64
 * bytes, heights to blocks of 8 x 2^k rows (k up to 4, as small as holds the height; a
 * one-dimensional array has 8 rows), depths to blocks of 2^k slices; the whole is then taken like
 * linear memory. Sparse and deferred arrays take nothing.
 */
#include "hook.h"

/* Bytes of one texel's channel; 0 if the format is not a plain one. */
static uint64_t channel_bytes(int format)
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
	default:
		return 0;
	}
}

/*
 * Bytes of one texel, times two so that NV12 is whole. Formats that name their channels
 * (UNORM_INT8X4) or compress blocks are counted by their largest member: driver truth corrects what
 * differs.
 */
static uint64_t texel_half_bytes(int format, unsigned int channels)
{
	uint64_t plain = channel_bytes(format);

	if (plain)
		return 2 * plain * channels;
	if (format == CU_AD_FORMAT_NV12)
		return 3;
	if (format >= 0xc0 && format <= 0xcb) /* [US]NORM_INT{8,16}X{1,2,4} */
		return 2 * (1ull << ((format - 0xc0) % 3)) * (((format - 0xc0) / 3) % 2 ? 2 : 1);
	if (format >= 0x91 && format <= 0x9e) /* BC1 .. BC7: 4x4 texels in 8 or 16 bytes */
		return (format <= 0x92 || format == 0x97 || format == 0x98) ? 1 : 2;
	return 8 * (channels ? channels : 1);
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
	return n > UINT64_MAX - step ? UINT64_MAX : (n + step - 1) / step * step;
}

/* The smallest block of 2^k units, at most `most`, that holds n; n rounded up to such blocks. */
static uint64_t blocked(uint64_t n, uint64_t unit, uint64_t most)
{
	uint64_t block = unit;

	while (block < n && block < most)
		block *= 2;
	return round_up(n, block);
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int level)
{
	uint64_t width = shape->Width >> level, height = shape->Height >> level;
	uint64_t depth = shape->Depth, row, bytes;
	bool layers = shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);

	if (!layers)
		depth >>= level; /* layers have no smaller levels */
	width = width ? width : 1;
	height = height ? height : 1;
	depth = depth ? depth : 1;
	if (__builtin_mul_overflow(width, texel_half_bytes(shape->Format, shape->NumChannels),
	                           &row))
		return UINT64_MAX;
	row = round_up(row / 2 + row % 2, 64);
	height = blocked(height, 8, 128);
	if (!layers)
		depth = blocked(depth, 1, 32);
	if (__builtin_mul_overflow(row, height, &bytes) ||
	    __builtin_mul_overflow(bytes, depth, &bytes))
		return UINT64_MAX;
	return bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
	uint64_t sum = 0;

	if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	for (unsigned int level = 0; level < levels && level < 64; level++) {
		if (__builtin_add_overflow(sum, level_bytes(shape, level), &sum))
			return UINT64_MAX;
	}
	return footprint(sum);
}

static CUDA_ARRAY3D_DESCRIPTOR flat(const CUDA_ARRAY_DESCRIPTOR *shape)
{
	return (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels};
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	if (!DRIVER_HAS(cuArrayCreate_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !array || !shape)
		return DRIVER(cuArrayCreate_v2)(array, shape);
	full = flat(shape);
	bytes = array_bytes(&full, 1);
	if (process_charge(ordinal, bytes, "cuArrayCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuArrayCreate_v2)(array, shape);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*array, ordinal, bytes,
	                        KIND_ARRAY);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	if (!DRIVER_HAS(cuArrayCreate))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !array || !shape)
		return DRIVER(cuArrayCreate)(array, shape);
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels};
	bytes = array_bytes(&full, 1);
	if (process_charge(ordinal, bytes, "cuArrayCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuArrayCreate)(array, shape);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*array, ordinal, bytes,
	                        KIND_ARRAY);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	if (!DRIVER_HAS(cuArray3DCreate_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !array || !shape)
		return DRIVER(cuArray3DCreate_v2)(array, shape);
	bytes = array_bytes(shape, 1);
	if (process_charge(ordinal, bytes, "cuArray3DCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuArray3DCreate_v2)(array, shape);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*array, ordinal, bytes,
	                        KIND_ARRAY);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
	CUDA_ARRAY3D_DESCRIPTOR full;
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	if (!DRIVER_HAS(cuArray3DCreate))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !array || !shape)
		return DRIVER(cuArray3DCreate)(array, shape);
	full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
	                                 .Height = shape->Height,
	                                 .Depth = shape->Depth,
	                                 .Format = shape->Format,
	                                 .NumChannels = shape->NumChannels,
	                                 .Flags = shape->Flags};
	bytes = array_bytes(&full, 1);
	if (process_charge(ordinal, bytes, "cuArray3DCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuArray3DCreate)(array, shape);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*array, ordinal, bytes,
	                        KIND_ARRAY);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                unsigned int levels)
{
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	if (!DRIVER_HAS(cuMipmappedArrayCreate))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !array || !shape)
		return DRIVER(cuMipmappedArrayCreate)(array, shape, levels);
	bytes = array_bytes(shape, levels);
	if (process_charge(ordinal, bytes, "cuMipmappedArrayCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMipmappedArrayCreate)(array, shape, levels);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*array, ordinal, bytes,
	                        KIND_MIPMAPPED);
}

CUresult cuArrayDestroy(CUarray array)
{
	uint64_t key = (uint64_t)(uintptr_t)array;
	struct map_value value;
	bool known;
	CUresult result;

	if (!DRIVER_HAS(cuArrayDestroy))
		return CUDA_ERROR_NOT_INITIALIZED;
	known = unhold(key, &value);
	result = DRIVER(cuArrayDestroy)(array);
	return known ? released_or_held(result, key, value) : result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	uint64_t key = (uint64_t)(uintptr_t)array;
	struct map_value value;
	bool known;
	CUresult result;

	if (!DRIVER_HAS(cuMipmappedArrayDestroy))
		return CUDA_ERROR_NOT_INITIALIZED;
	known = unhold(key, &value);
	result = DRIVER(cuMipmappedArrayDestroy)(array);
	return known ? released_or_held(result, key, value) : result;
}
