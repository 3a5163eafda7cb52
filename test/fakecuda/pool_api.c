/* SPDX-License-Identifier: Apache-2.0 */
/* Pools as objects: creation, and attributes. */
#include "capture.h"
#include "pool.h"

static bool is_host(int type)
{
	return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
	struct device *device = NULL;
	CUmemoryPool pool;

	DRIVER_ENTER();
	if (!out || !properties)
		return CUDA_ERROR_INVALID_VALUE;
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		device = device_at(properties->location.id);
		if (!device)
			return CUDA_ERROR_INVALID_DEVICE;
	} else if (!is_host(properties->location.type)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* Its segments are only addresses: pool.c counts the pages. */
	if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
		device = NULL;
	else if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	pool = device && !pool_fits(device, properties->maxSize)
	           ? NULL
	           : pool_create(device, properties->location, properties->allocType);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pool->max_size = properties->maxSize;
	pool->handle_types = properties->handleTypes;
	*out = pool;
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success. */
static CUresult enter_pool(CUmemoryPool pool)
{
	CUresult result = driver_enter();

	if (result == CUDA_SUCCESS && !pool_is_known(pool))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return result;
}

CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	DRIVER_ENTER();
	if (pool_import_destroy(pool))
		return CUDA_SUCCESS;
	if (!pool_is_known(pool) || pool->is_default)
		return CUDA_ERROR_INVALID_VALUE;
	pool_destroy(pool);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	pool_point("cuMemPoolTrimTo");
	DRIVER_ENTER_BY(enter_pool(pool));
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pool_trim(pool, keep);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	uint64_t *bytes = value;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_BY(enter_pool(pool));
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = pool->reuse[attribute - 1];
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*bytes = pool->threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*bytes = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*bytes = pool->reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*bytes = pool->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*bytes = pool->used_high;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
	const uint64_t *bytes = value;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_BY(enter_pool(pool));
	if (capture_forbids())
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		pool->reuse[attribute - 1] = *(const int *)value;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *bytes;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		/* A high-water mark can only be reset. */
		if (*bytes)
			result = CUDA_ERROR_INVALID_VALUE;
		else
			pool->reserved_high = pool->reserved;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*bytes)
			result = CUDA_ERROR_INVALID_VALUE;
		else
			pool->used_high = pool->used;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}
