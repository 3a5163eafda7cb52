/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools for other processes. A pool is exported as a file; an allocation in it as 64 bytes, for a
 * process that has imported the pool. An imported pool serves to import allocations only.
 */
#include "hold.h"
#include "pool.h"
#include "view.h"

#include <stdlib.h>
#include <string.h>

/* The target of a CUmemoryPool of another process. */
struct import {
	struct import *next;
	uint64_t object;
	unsigned hold;
	struct segment_hold *segments;
};

/* Observed: memory of an imported pointer stays until the imported pool is destroyed, not just
 * until the pointer is freed. */
struct segment_hold {
	struct segment_hold *next;
	uint64_t object;
	unsigned hold;
};

struct exported_pointer {
	uint64_t pool;
	struct exported memory;
};

static struct import *imports;

static struct import *import_of(CUmemoryPool pool)
{
	struct import *import;

	for (import = imports; import && (void *)import != (void *)pool; import = import->next)
		;
	return import;
}

bool pool_import_destroy(CUmemoryPool pool)
{
	struct import *import = import_of(pool), **link = &imports;

	if (!import)
		return false;
	while (*link != import)
		link = &(*link)->next;
	*link = import->next;
	while (import->segments) {
		struct segment_hold *segment = import->segments;

		import->segments = segment->next;
		object_let_go(segment->hold);
		free(segment);
	}
	object_let_go(import->hold);
	free(import);
	return true;
}

static bool hold_segment(struct import *import, uint64_t object)
{
	struct segment_hold *segment = import->segments;

	while (segment && segment->object != object)
		segment = segment->next;
	if (segment)
		return true;
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return false;
	segment->object = object;
	segment->hold = object_hold(object, HOLD_MAPPING);
	if (!segment->hold) {
		free(segment);
		return false;
	}
	segment->next = import->segments;
	import->segments = segment;
	return true;
}

void pool_import_free(struct range *range)
{
	view_close(range);
}

static bool is_exportable(CUmemoryPool pool)
{
	return pool_is_known(pool) && pool->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

static CUresult export(int *out, CUmemoryPool pool)
{
	struct object_info info = {.kind = OBJECT_POOL, .device = NO_DEVICE};

	if (!pool->object)
		pool->object = object_create(&info, HOLD_HANDLE, &pool->hold);
	if (!pool->object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = object_export(pool->object);
	return *out == -1 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type,
                                                   unsigned long long flags)
{
	DRIVER_ENTER();
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !is_exportable(pool))
		return CUDA_ERROR_INVALID_VALUE;
	return export(out, pool);
}

static CUresult import(CUmemoryPool *out, int fd)
{
	uint64_t object = object_of_file(fd);
	struct object_info info;
	struct import *import;

	if (!object_find(object, &info) || info.kind != OBJECT_POOL)
		return CUDA_ERROR_INVALID_VALUE;
	import = calloc(1, sizeof(*import));
	if (!import)
		return CUDA_ERROR_OUT_OF_MEMORY;
	import->object = object;
	import->hold = object_hold(object, HOLD_HANDLE);
	if (!import->hold) {
		free(import);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	import->next = imports;
	imports = import;
	*out = (CUmemoryPool)(void *)import;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
                                                     unsigned long long flags)
{
	DRIVER_ENTER();
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	return import(out, (int)(intptr_t)handle);
}

static CUresult export_pointer(CUmemPoolPtrExportData *out, CUdeviceptr pointer)
{
	struct range *range = ranges_at(&allocations, pointer);
	struct exported_pointer exported;
	CUmemoryPool pool;

	if (!out || !range || range->kind != RANGE_POOL || range->start != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	pool = pool_of(range);
	/* No process can import a pointer of a pool that was never exported. */
	if (!is_exportable(pool) || !pool->object)
		return CUDA_ERROR_INVALID_VALUE;
	exported.pool = pool->object;
	exported.memory = (struct exported){
	    .object = pool_share_segment(range), .address = range->start, .size = range->size};
	if (!exported.memory.object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(out, 0, sizeof(*out));
	memcpy(out, &exported, sizeof(exported));
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr pointer)
{
	DRIVER_ENTER();
	return export_pointer(out, pointer);
}

CUDA_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool,
                                         CUmemPoolPtrExportData *data)
{
	struct exported_pointer exported;
	struct import *import;
	struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	import = import_of(pool);
	if (!out || !import || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&exported, data, sizeof(exported));
	if (exported.pool != import->object || object_is_own(exported.memory.object))
		return CUDA_ERROR_INVALID_VALUE;
	TRY(view_open(context, &exported.memory, OBJECT_SEGMENT, RANGE_IMPORTED, &range));
	if (!hold_segment(import, exported.memory.object)) {
		view_close(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = range->start;
	return CUDA_SUCCESS;
}
