/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sparse arrays: memory is mapped into them by tiles of 64 KiB. Levels smaller than a tile share
 * the mip tail of their layer.
 */
#include "tile.h"

#include "array.h"
#include "physical.h"

#include <stdlib.h>

#define TILE_BYTES (64ull * 1024)

struct extent {
	size_t width, height, depth;
};

/* The division of an array into tiles. They are numbered by level, layer, depth, row and column;
 * the tails follow. */
struct cut {
	struct extent tile; /* in texels */
	unsigned levels;    /* outside the tail */
	size_t layers;
	size_t tail_bytes; /* of one layer */
	size_t tail_first; /* the number of its first tile */
	size_t count;
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

static size_t at_level(size_t length, unsigned level)
{
	size_t smaller = level < 64 ? length >> level : 0;

	return smaller ? smaller : 1;
}

static size_t parts(size_t length, size_t step)
{
	return length / step + (length % step != 0);
}

static struct extent level_extent(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned level)
{
	bool layered = array_is_layered(shape);

	return (struct extent){at_level(shape->Width, level), at_level(shape->Height, level),
	                       layered ? 1 : at_level(shape->Depth, level)};
}

static size_t tiles_of_level(const struct cut *cut, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                             unsigned level)
{
	struct extent extent = level_extent(shape, level);

	return parts(extent.width, cut->tile.width) * parts(extent.height, cut->tile.height) *
	       parts(extent.depth, cut->tile.depth);
}

static bool cut_array(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels, struct cut *cut)
{
	size_t bytes;

	*cut = (struct cut){.layers = array_is_layered(shape) ? shape->Depth : 1};
	if (!(shape->Flags & CUDA_ARRAY3D_SPARSE) || !tile_of(shape, &cut->tile))
		return false;
	while (cut->levels < levels) {
		struct extent extent = level_extent(shape, cut->levels);

		if (levels > 1 &&
		    (extent.width < cut->tile.width || extent.height < cut->tile.height ||
		     extent.depth < cut->tile.depth))
			break;
		cut->tail_first += tiles_of_level(cut, shape, cut->levels) * cut->layers;
		cut->levels++;
	}
	if (cut->levels < levels) {
		CUDA_ARRAY3D_DESCRIPTOR tail = *shape;
		struct extent extent = level_extent(shape, cut->levels);

		tail.Width = extent.width;
		tail.Height = extent.height;
		tail.Depth = array_is_layered(shape) ? 1 : shape->Depth ? extent.depth : 0;
		if (!array_bytes(&tail, levels - cut->levels, &bytes))
			return false;
		cut->tail_bytes = parts(bytes, TILE_BYTES) * TILE_BYTES;
	}
	cut->count = cut->tail_first + cut->tail_bytes / TILE_BYTES * cut->layers;
	return true;
}

static CUresult properties_of(CUDA_ARRAY_SPARSE_PROPERTIES *out,
                              const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
	struct cut cut;

	if (!out || !cut_array(shape, levels, &cut))
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_SPARSE_PROPERTIES){.tileExtent = {(unsigned)cut.tile.width,
	                                                     (unsigned)cut.tile.height,
	                                                     (unsigned)cut.tile.depth},
	                                      .miptailFirstLevel = cut.levels,
	                                      .miptailSize = cut.tail_bytes};
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!array)
		return CUDA_ERROR_INVALID_HANDLE;
	return properties_of(out, &array->shape, 1);
}

CUDA_API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
                                                      CUmipmappedArray mipmap)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	return properties_of(out, &mipmap->level[0].shape, mipmap->levels);
}

/* A decoded entry of cuMemMapArrayAsync's list. */
struct operation {
	const CUDA_ARRAY3D_DESCRIPTOR *shape;
	unsigned levels;
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
	unsigned level = info->subresource.sparseLevel.level;
	unsigned layer = info->subresource.sparseLevel.layer;
	const struct extent *tile = &op->cut.tile;
	struct extent from = {info->subresource.sparseLevel.offsetX,
	                      info->subresource.sparseLevel.offsetY,
	                      info->subresource.sparseLevel.offsetZ};
	struct extent size = {info->subresource.sparseLevel.extentWidth,
	                      info->subresource.sparseLevel.extentHeight,
	                      info->subresource.sparseLevel.extentDepth};
	struct extent whole;
	size_t base = 0, columns, rows, wide, high, deep;

	if (level >= op->cut.levels || layer >= op->cut.layers)
		return CUDA_ERROR_INVALID_VALUE;
	whole = level_extent(op->shape, level);
	if (!is_tiled(from.width, size.width, whole.width, tile->width) ||
	    !is_tiled(from.height, size.height, whole.height, tile->height) ||
	    !is_tiled(from.depth, size.depth, whole.depth, tile->depth))
		return CUDA_ERROR_INVALID_VALUE;
	wide = parts(size.width, tile->width);
	high = parts(size.height, tile->height);
	deep = parts(size.depth, tile->depth);
	if (op->physical && (info->offset > op->physical->size ||
	                     wide * high * deep * TILE_BYTES > op->physical->size - info->offset))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < level; i++)
		base += tiles_of_level(&op->cut, op->shape, i) * op->cut.layers;
	base += tiles_of_level(&op->cut, op->shape, level) * layer;
	columns = parts(whole.width, tile->width);
	rows = parts(whole.height, tile->height);
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

static CUresult set_tail(struct operation *op, const CUarrayMapInfo *info)
{
	uint64_t offset = info->subresource.miptail.offset, size = info->subresource.miptail.size;
	size_t of_layer = op->cut.tail_bytes / TILE_BYTES;
	size_t first = op->cut.tail_first + info->subresource.miptail.layer * of_layer;

	if (info->subresource.miptail.layer >= op->cut.layers ||
	    !is_tiled(offset, size, op->cut.tail_bytes, TILE_BYTES) ||
	    (op->physical &&
	     (info->offset > op->physical->size || size > op->physical->size - info->offset)))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < size / TILE_BYTES; i++)
		if (!set(op, first + offset / TILE_BYTES + i))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

static bool make_out(struct operation *op, const CUarrayMapInfo *info)
{
	CUarray array = info->resource.array;
	CUmipmappedArray mipmap = info->resource.mipmap;
	bool map = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;

	if (!array || info->memHandleType || info->flags || info->offset % TILE_BYTES ||
	    (!map && info->memOperationType != CU_MEM_OPERATION_TYPE_UNMAP))
		return false;
	if (info->resourceType == CU_RESOURCE_TYPE_ARRAY && !array->is_level)
		*op =
		    (struct operation){.shape = &array->shape, .levels = 1, .tiles = &array->tiles};
	else if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		*op = (struct operation){.shape = &mipmap->level[0].shape,
		                         .levels = mipmap->levels,
		                         .tiles = &mipmap->tiles};
	else
		return false;
	if (map) {
		op->physical = physical_of(info->memHandle.memHandle);
		if (!op->physical ||
		    !(op->physical->properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL))
			return false;
	}
	return cut_array(op->shape, op->levels, &op->cut);
}

static CUresult run(const CUarrayMapInfo *info)
{
	struct operation op;

	if (!make_out(&op, info))
		return CUDA_ERROR_INVALID_VALUE;
	if (!*op.tiles) {
		*op.tiles =
		    calloc(1, sizeof(**op.tiles) + op.cut.count * sizeof((*op.tiles)->memory[0]));
		if (!*op.tiles)
			return CUDA_ERROR_OUT_OF_MEMORY;
		(*op.tiles)->count = op.cut.count;
	}
	switch (info->subresourceType) {
	case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL:
		return set_level(&op, info);
	case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL:
		return set_tail(&op, info);
	}
	return CUDA_ERROR_INVALID_VALUE;
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
