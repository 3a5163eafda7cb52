/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse arrays: memory is mapped into them by tiles of 64 KiB. */
#include "array.h"
#include "physical.h"

#include <stdlib.h>

#define TILE_BYTES (64ull * 1024)

struct extent {
	size_t width, height, depth;
};

/* The division of an array into tiles. They are numbered by layer, depth, row and column. */
struct cut {
	struct extent whole, tile; /* in texels */
	size_t layers;
	size_t of_layer, count;
};

/* The memory of each tile; NULL: none. */
struct tiles {
	size_t count;
	struct physical *memory[];
};

static void clear(struct physical **tile)
{
	if (*tile) {
		(*tile)->tiles--;
		physical_unmap(*tile);
	}
	*tile = NULL;
}

void tiles_free(struct tiles *tiles)
{
	if (!tiles)
		return;
	for (size_t i = 0; i < tiles->count; i++)
		clear(&tiles->memory[i]);
	free(tiles);
}

/* The standard shapes of Direct3D and Vulkan. 128 x 128 texels of 4 bytes: observed. */
static bool tile_of(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct extent *tile)
{
	static const struct extent planes[] = {
	    {256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
	static const struct extent boxes[] = {
	    {64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
	bool compressed, box = shape->Depth && !array_is_layered(shape);
	unsigned bytes = array_texel_bytes(shape, &compressed), index = 0;

	while (index < 5 && bytes != 1u << index)
		index++;
	if (index == 5 || !shape->Height)
		return false;
	*tile = box ? boxes[index] : planes[index];
	if (compressed) {
		tile->width *= 4;
		tile->height *= 4;
	}
	return true;
}

static size_t parts(size_t length, size_t step)
{
	return length / step + (length % step != 0);
}

static bool cut_array(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct cut *cut)
{
	bool layered = array_is_layered(shape);

	if (!(shape->Flags & CUDA_ARRAY3D_SPARSE) || !tile_of(shape, &cut->tile))
		return false;
	cut->layers = layered ? shape->Depth : 1;
	cut->whole = (struct extent){shape->Width, shape->Height,
	                             layered || !shape->Depth ? 1 : shape->Depth};
	cut->of_layer = parts(cut->whole.width, cut->tile.width) *
	                parts(cut->whole.height, cut->tile.height) *
	                parts(cut->whole.depth, cut->tile.depth);
	cut->count = cut->of_layer * cut->layers;
	return true;
}

CUDA_API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array)
{
	struct cut cut;

	DRIVER_ENTER_CONTEXT(context);
	if (!array)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !cut_array(&array->shape, &cut))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {(unsigned)cut.tile.width,
	                                                     (unsigned)cut.tile.height,
	                                                     (unsigned)cut.tile.depth},
	                                      .miptailFirstLevel = 1};
	return CUDA_SUCCESS;
}

/* A decoded entry of cuMemMapArrayAsync's list. */
struct operation {
	struct tiles **tiles;
	struct cut cut;
	struct physical *physical; /* NULL: unmap */
};

static bool set(struct operation *op, size_t number)
{
	struct physical **tile = &(*op->tiles)->memory[number];

	if (op->physical && !physical_map(op->physical))
		return false;
	if (op->physical)
		op->physical->tiles++;
	clear(tile);
	*tile = op->physical;
	return true;
}

/* True if [offset, offset + length) is whole tiles of a length, or reaches the end. */
static bool is_tiled(size_t offset, size_t extent, size_t whole, size_t step)
{
	return extent && offset % step == 0 && offset < whole && extent <= whole - offset &&
	       (extent % step == 0 || offset + extent == whole);
}

static CUresult set_level(struct operation *op, const CUarrayMapInfo *info)
{
	unsigned layer = info->subresource.sparseLevel.layer;
	const struct extent *tile = &op->cut.tile, *whole = &op->cut.whole;
	struct extent from = {info->subresource.sparseLevel.offsetX,
	                      info->subresource.sparseLevel.offsetY,
	                      info->subresource.sparseLevel.offsetZ};
	struct extent size = {info->subresource.sparseLevel.extentWidth,
	                      info->subresource.sparseLevel.extentHeight,
	                      info->subresource.sparseLevel.extentDepth};
	size_t base = op->cut.of_layer * layer, columns, rows, wide, high, deep;

	if (info->subresource.sparseLevel.level || layer >= op->cut.layers)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_tiled(from.width, size.width, whole->width, tile->width) ||
	    !is_tiled(from.height, size.height, whole->height, tile->height) ||
	    !is_tiled(from.depth, size.depth, whole->depth, tile->depth))
		return CUDA_ERROR_INVALID_VALUE;
	wide = parts(size.width, tile->width);
	high = parts(size.height, tile->height);
	deep = parts(size.depth, tile->depth);
	if (op->physical && (info->offset > op->physical->size ||
	                     wide * high * deep * TILE_BYTES > op->physical->size - info->offset))
		return CUDA_ERROR_INVALID_VALUE;
	columns = parts(whole->width, tile->width);
	rows = parts(whole->height, tile->height);
	for (size_t z = 0; z < deep; z++)
		for (size_t y = 0; y < high; y++)
			for (size_t x = 0; x < wide; x++) {
				size_t plane = from.depth / tile->depth + z;
				size_t row = from.height / tile->height + y;
				size_t column = from.width / tile->width + x;

				if (!set(op, base + (plane * rows + row) * columns + column))
					return CUDA_ERROR_OUT_OF_MEMORY;
			}
	return CUDA_SUCCESS;
}

static bool make_out(struct operation *op, const CUarrayMapInfo *info)
{
	CUarray array = info->resource.array;
	bool map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;

	if (!array || info->memHandleType || info->flags || info->offset % TILE_BYTES ||
	    (!map && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP) ||
	    info->resourceType != CU_RESOURCE_TYPE_ARRAY)
		return false;
	*op = (struct operation){.tiles = &array->tiles};
	if (map) {
		op->physical = physical_of(info->memHandle.memHandle);
		if (!op->physical ||
		    !(op->physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL))
			return false;
	}
	return cut_array(&array->shape, &op->cut);
}

static CUresult run(const CUarrayMapInfo *info)
{
	struct operation op;

	if (info->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL ||
	    !make_out(&op, info))
		return CUDA_ERROR_INVALID_VALUE;
	if (!*op.tiles) {
		*op.tiles =
		    calloc(1, sizeof(**op.tiles) + op.cut.count * sizeof((*op.tiles)->memory[0]));
		if (!*op.tiles)
			return CUDA_ERROR_OUT_OF_MEMORY;
		(*op.tiles)->count = op.cut.count;
	}
	return set_level(&op, info);
}

/* In their order, up to the first wrong one. */
CUDA_API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;

	(void)stream;
	DRIVER_ENTER_CONTEXT(context);
	if (!list || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = run(&list[i]);
	return result;
}

CUDA_API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return cuMemMapArrayAsync(list, count, stream);
}
