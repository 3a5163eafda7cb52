/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large an array is. The card keeps it in blocks: a block is one GOB wide (64 bytes), a power
 * of two of GOBs (8 rows each) high, and a power of two of slices deep. A level is as many whole
 * blocks as cover it, and the block is the smallest that is as large as the level, up to a limit:
 *
 *   lines, planes, and their layers   16 GOBs high, one slice deep
 *   boxes                             1 GOB high, 16 slices deep
 *
 * Every layer of a mipmapped array has its levels one after another, and begins at a whole block of
 * the largest level: a cubemap of 256 x 256 floats with five levels has 2,095,104 bytes of levels,
 * but took 4 MiB of the card. All figures are from ../conformance/expected/h100.txt: its boxes of
 * 4096 texels a row allow no other limits. NV12 is taken with its three channels and the flag for
 * video, and counts one byte and a half a texel.
 */
#include "array.h"

#define LAST_BLOCK_COMPRESSED 0x9e /* BC7_UNORM_SRGB */
#define LAST_NORMALISED 0xcb       /* SNORM_INT16X4 */

#define GOB_WIDTH 64
#define GOB_ROWS 8
#define PLANE_GOBS 16
#define BOX_GOBS 1
#define BOX_SLICES 16
#define FLAG_VIDEO 0x100 /* CUDA_ARRAY3D_VIDEO_ENCODE_DECODE */

struct level {
	size_t row_bytes, rows, slices;
};

/* Bytes of one channel of one texel; 0 for formats with another rule. */
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
	/* In groups of three: 8 bits unsigned, 16 bits unsigned, 8 bits signed, 16 bits signed. */
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

unsigned array_texel_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, bool *compressed)
{
	unsigned block = compressed_bytes(shape->Format);

	*compressed = block != 0;
	return block ? block : channel_bytes(shape->Format) * shape->NumChannels;
}

bool array_is_layered(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

static bool is_video(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Format == CU_AD_FORMAT_NV12 && (shape->Flags & FLAG_VIDEO);
}

bool array_is_valid(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	bool channels =
	    shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4;

	if (is_video(shape))
		return shape->NumChannels == 3 && shape->Width && shape->Height && !shape->Depth;
	if (!shape->Width || !channels)
		return false;
	if (!channel_bytes(shape->Format) && !compressed_bytes(shape->Format))
		return false;
	if (shape->Flags & CUDA_ARRAY3D_LAYERED)
		return shape->Depth != 0;
	return !(shape->Depth && !shape->Height);
}

static size_t halved(size_t length, unsigned times)
{
	size_t smaller = times < 64 ? length >> times : 0;

	return smaller ? smaller : 1;
}

unsigned array_level_limit(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	size_t longest = shape->Width > shape->Height ? shape->Width : shape->Height;
	unsigned limit = 1;

	if (!array_is_layered(shape) && shape->Depth > longest)
		longest = shape->Depth;
	for (; longest > 1; longest /= 2)
		limit++;
	return limit;
}

static bool level_of(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned index, struct level *level)
{
	size_t width = halved(shape->Width, index);
	size_t height = halved(shape->Height, index);
	unsigned texel = channel_bytes(shape->Format) * shape->NumChannels;
	unsigned compressed = compressed_bytes(shape->Format);

	if (compressed) {
		texel = compressed;
		width = width / 4 + (width % 4 != 0);
		height = height / 4 + (height % 4 != 0);
	}
	if (is_video(shape)) {
		texel = 1;
		height += height / 2; /* colours, at half the resolution, after the brightness */
	}
	level->rows = height;
	level->slices = array_is_layered(shape) ? 1 : halved(shape->Depth, index);
	return !__builtin_mul_overflow(width, texel, &level->row_bytes);
}

/* The size of a block along one axis: 2^n units, as few as hold `length`, at most `limit`. */
static size_t block_of(size_t length, size_t unit, size_t limit)
{
	size_t units = 1;

	while (units < limit && units * unit < length)
		units *= 2;
	return units * unit;
}

static bool pad(size_t *length, size_t block)
{
	size_t whole = *length / block + (*length % block != 0);

	return !__builtin_mul_overflow(whole, block, length);
}

/* The level's bytes in whole blocks, and the bytes of one block. */
static bool level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned index, size_t *bytes,
                        size_t *block)
{
	bool box = shape->Depth && !array_is_layered(shape);
	struct level level;
	size_t rows, slices;

	if (!level_of(shape, index, &level))
		return false;
	rows = block_of(level.rows, GOB_ROWS, box ? BOX_GOBS : PLANE_GOBS);
	slices = block_of(level.slices, 1, box ? BOX_SLICES : 1);
	*block = GOB_WIDTH * rows * slices;
	return pad(&level.row_bytes, GOB_WIDTH) && pad(&level.rows, rows) &&
	       pad(&level.slices, slices) &&
	       !__builtin_mul_overflow(level.row_bytes, level.rows, bytes) &&
	       !__builtin_mul_overflow(*bytes, level.slices, bytes);
}

bool array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, size_t *bytes)
{
	size_t layers = array_is_layered(shape) ? shape->Depth : 1;
	size_t more, block, ignored;

	if (!level_bytes(shape, 0, bytes, &block))
		return false;
	for (unsigned i = 1; i < levels; i++)
		if (!level_bytes(shape, i, &more, &ignored) ||
		    __builtin_add_overflow(*bytes, more, bytes))
			return false;
	return (layers == 1 || pad(bytes, block)) && !__builtin_mul_overflow(*bytes, layers, bytes);
}
