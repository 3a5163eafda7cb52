/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays: memory in the layout of the texture units, which is larger than its texels.
 *
 * Driver observation (H100, 580.159.04; test/conformance/expected/h100.txt has the figures): rows
 * are padded to 64 bytes. Heights are padded to blocks of 8 x 2^k rows, the smallest that holds the
 * height, but at most 128 rows (so one row takes eight). A 3D array has blocks of 8 rows, and
 * depths padded to blocks of 2^k slices, at most 16. Compressed formats count in blocks of 4 x 4
 * texels. The levels of a mipmapped array follow one another; with layers, each layer has all its
 * levels, padded to a block of the largest. The driver takes blocks of 2 MiB; arrays up to 1 MiB
 * share one with other arrays, but not with linear memory. Sparse and deferred arrays take nothing
 * (but page tables). NV12 takes a byte and a half per texel.
 *
 * The driver returns a shared block with its last array. An array has no address to find its block
 * by. A change of the card's free memory during a call shows that a block was taken or returned,
 * and driver truth shows its size. The blocks are charged as overhead.
 */
#include "block.h"
#include "grant.h"
#include "handover.h"
#include "hold.h"
#include "overhead.h"
#include "table.h"

#include <string.h>

/* Return 0 if the format is not a plain one. */
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

/* Return the bytes of 4 x 4 texels in the compressed formats BC1 .. BC7, else 0. */
static uint64_t compressed_bytes(int format)
{
	if (format < 0x91 || format > 0x9e)
		return 0;
	return format <= 0x92 || format == 0x97 || format == 0x98 ? 8 : 16; /* BC1, BC4; others */
}

/* Return the bytes of a texel, doubled so that NV12 is whole. An unknown format counts as the
 * largest; driver truth corrects the difference. */
static uint64_t texel_half_bytes(int format, unsigned int channels)
{
	uint64_t plain = channel_bytes(format);

	if (plain)
		return 2 * plain * channels;
	if (format == CU_AD_FORMAT_NV12)
		return 3;
	if (format >= 0xc0 && format <= 0xcb) /* [US]NORM_INT{8,16}X{1,2,4} */
		return 2 * (1ull << ((format - 0xc0) % 3)) * (((format - 0xc0) / 3) % 2 ? 2 : 1);
	return 8ull * (channels ? channels : 1);
}

static uint64_t round_up(uint64_t n, uint64_t step)
{
	return n > UINT64_MAX - step ? UINT64_MAX : (n + step - 1) / step * step;
}

/* Return the smallest block of 2^k units, at most `most`, that holds n. */
static uint64_t block_for(uint64_t n, uint64_t unit, uint64_t most)
{
	uint64_t block = unit;

	while (block < n && block < most)
		block *= 2;
	return block;
}

static bool has_layers(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
}

static uint64_t at_level(uint64_t length, unsigned int level)
{
	return length >> level ? length >> level : 1;
}

/* Return the bytes of a level, of one layer if there are layers; UINT64_MAX on overflow. *block is
 * the size of its blocks. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int level,
                            uint64_t *block)
{
	bool solid = shape->Depth && !has_layers(shape);
	uint64_t width = at_level(shape->Width, level), height = at_level(shape->Height, level);
	uint64_t depth = solid ? at_level(shape->Depth, level) : 1;
	uint64_t texel = texel_half_bytes(shape->Format, shape->NumChannels);
	uint64_t row, rows, slices, bytes;

	if (compressed_bytes(shape->Format)) {
		texel = 2 * compressed_bytes(shape->Format);
		width = width / 4 + (width % 4 != 0);
		height = height / 4 + (height % 4 != 0);
	}
	rows = block_for(height, 8, solid ? 8 : 128);
	slices = block_for(depth, 1, 16);
	*block = 64 * rows * slices;
	if (__builtin_mul_overflow(width, texel, &row))
		return UINT64_MAX;
	row = round_up(row / 2 + row % 2, 64);
	if (__builtin_mul_overflow(row, round_up(height, rows), &bytes) ||
	    __builtin_mul_overflow(bytes, round_up(depth, slices), &bytes))
		return UINT64_MAX;
	return bytes;
}

/* Return the number of levels: at most down to one texel. */
static unsigned int level_count(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int wanted)
{
	uint64_t longest = shape->Width > shape->Height ? shape->Width : shape->Height;
	unsigned int most = 1;

	if (!has_layers(shape) && shape->Depth > longest)
		longest = shape->Depth;
	for (; longest > 1; longest /= 2)
		most++;
	return wanted < most ? wanted : most;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
	uint64_t sum = 0, block = 0, ignored;

	if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	levels = level_count(shape, levels);
	for (unsigned int level = 0; level < levels; level++) {
		uint64_t bytes = level_bytes(shape, level, level ? &ignored : &block);

		if (__builtin_add_overflow(sum, bytes, &sum))
			return UINT64_MAX;
	}
	if (has_layers(shape) && block &&
	    __builtin_mul_overflow(round_up(sum, block), shape->Depth, &sum))
		return UINT64_MAX;
	return sum <= BLOCK_SMALL ? sum : block_round(sum);
}

/* An array that is created. A small one shares a block, may need a new one, and holds no bytes of
 * its own. */
struct creating {
	CUdevice ordinal;
	uint64_t bytes;
	bool small;
	struct watch watch;
};

static CUresult begin(struct creating *c, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
	c->bytes = array_bytes(shape, levels);
	c->small = c->bytes && c->bytes <= BLOCK_SMALL;
	if (c->small ? process_device_attached(c->ordinal) < 0
	             : grant(c->ordinal, c->bytes, KIND_MEMORY, LEDGER_CALL_ARRAY) != GRANTED)
		return grant_error();
	if (c->small)
		c->watch = watch_begin();
	return CUDA_SUCCESS;
}

/* `array` has received the handle, a pointer in all entry points. */
static CUresult end(const struct creating *c, CUresult result, void *array, bool mipmapped)
{
	uint64_t key = result == CUDA_SUCCESS ? *(uintptr_t *)array : 0;

	if (!c->small)
		return hold_or_release(result, key, c->ordinal, c->bytes, KIND_MEMORY);
	if (result != CUDA_SUCCESS) {
		watch_drop(&c->watch);
		return result;
	}
	if (watch_end_block(&c->watch, LEDGER_CALL_ARRAY))
		return hold_or_release(result, key, c->ordinal, 0, KIND_OVERHEAD);
	if (mipmapped)
		(void)DRIVER(cuMipmappedArrayDestroy)((CUmipmappedArray)key);
	else
		(void)DRIVER(cuArrayDestroy)((CUarray)key);
	memset(array, 0, sizeof(CUarray));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define FLAT(shape)                                                                                \
	(&(CUDA_ARRAY3D_DESCRIPTOR){.Width = (shape)->Width,                                       \
	                            .Height = (shape)->Height,                                     \
	                            .Format = (shape)->Format,                                     \
	                            .NumChannels = (shape)->NumChannels})

#define SOLID(shape)                                                                               \
	(&(CUDA_ARRAY3D_DESCRIPTOR){.Width = (shape)->Width,                                       \
	                            .Height = (shape)->Height,                                     \
	                            .Depth = (shape)->Depth,                                       \
	                            .Format = (shape)->Format,                                     \
	                            .NumChannels = (shape)->NumChannels,                           \
	                            .Flags = (shape)->Flags})

/* Define a function that creates an array, of the program's shape in full. */
#define CREATES(name, parameters, arguments, full, levels, mipmapped)                              \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct creating creating = {.ordinal = process_current_ordinal()};                 \
		CUresult result;                                                                   \
                                                                                                   \
		if (creating.ordinal < 0 || !array || !shape)                                      \
			return DRIVER(name) arguments;                                             \
		result = begin(&creating, full, levels);                                           \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return end(&creating, DRIVER(name) arguments, array, mipmapped);                   \
	}

CREATES(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *shape), (array, shape),
        FLAT(shape), 1, false)
CREATES(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape), (array, shape),
        FLAT(shape), 1, false)
CREATES(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *shape), (array, shape),
        shape, 1, false)
CREATES(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape), (array, shape),
        SOLID(shape), 1, false)
CREATES(cuMipmappedArrayCreate,
        (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels),
        (array, shape, levels), shape, levels, true)

/* State across the driver's call: a small array's end may end its block. */
struct destroying {
	uint64_t key;
	bool known;
	struct holding holding;
	struct watch watch;
};

static struct destroying begin_destroying(const void *array)
{
	struct destroying d = {.key = (uint64_t)(uintptr_t)array, .watch = {.ordinal = -1}};

	d.known = unhold(d.key, &d.holding);
	if (d.known && d.holding.kind == KIND_OVERHEAD)
		d.watch = watch_begin();
	return d;
}

static CUresult end_destroying(const struct destroying *d, CUresult result)
{
	/* A destroyed sparse array releases the memory that was mapped in its tiles. */
	if (result == CUDA_SUCCESS)
		objects_unbind(d->key, -1, 0, UINT64_MAX);
	handover_look();
	if (!d->known)
		return result;
	if (d->holding.kind == KIND_OVERHEAD)
		watch_end_less(&d->watch, d->holding.ordinal);
	return release_or_hold(result, d->key, &d->holding);
}

CUresult cuArrayDestroy(CUarray array)
{
	struct destroying d = begin_destroying(array);

	return end_destroying(&d, DRIVER(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct destroying d = begin_destroying(array);

	return end_destroying(&d, DRIVER(cuMipmappedArrayDestroy)(array));
}
