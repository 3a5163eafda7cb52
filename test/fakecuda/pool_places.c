/* SPDX-License-Identifier: Apache-2.0 */
/* The default and current pools: per card, and since CUDA 13.0 per location and kind of memory. */
#include "pool.h"

#include <stdlib.h>

CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = pool_default(device);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = pool_current(device);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!pool || !pool_is_known(pool) || pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	device->current_pool = pool;
	return CUDA_SUCCESS;
}

/*
 * The forms of CUDA 13.0 name a location and a kind of memory. Pinned memory of a card has the
 * pools above; every other pair has one of its own. A card's managed pool takes pages that NVML
 * lists for no process (pool_segment.c), the others take nothing of a card.
 */
struct elsewhere {
	struct elsewhere *next;
	CUmemLocation location;
	int type;
	/* The last one set, even if destroyed since: the default one is then not returned. */
	CUmemoryPool default_pool, current_pool;
};

struct place {
	CUmemoryPool default_pool;
	CUmemoryPool *current_pool; /* *current_pool is NULL for the default one */
};

static struct elsewhere *all_elsewhere;

static struct elsewhere *elsewhere_at(const CUmemLocation *location, int type)
{
	struct elsewhere *here;

	for (here = all_elsewhere; here; here = here->next)
		if (here->type == type && here->location.type == location->type &&
		    here->location.id == location->id)
			return here;
	here = calloc(1, sizeof(*here));
	if (!here)
		return NULL;
	here->location = *location;
	here->type = type;
	here->default_pool = pool_create(NULL, *location, type);
	if (!here->default_pool) {
		free(here);
		return NULL;
	}
	here->default_pool->is_default = true;
	here->next = all_elsewhere;
	all_elsewhere = here;
	return here;
}

static CUresult check_place(const CUmemLocation *location, int type)
{
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	switch (location->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return device_at(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult find_place(const CUmemLocation *location, int type, struct place *place)
{
	struct elsewhere *elsewhere;

	TRY(check_place(location, type));
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    type == CU_MEM_ALLOCATION_TYPE_PINNED) {
		struct device *device = device_at(location->id);

		*place = (struct place){pool_default(device), &device->current_pool};
		return place->default_pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	elsewhere = elsewhere_at(location, type);
	if (!elsewhere)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*place = (struct place){elsewhere->default_pool, &elsewhere->current_pool};
	return CUDA_SUCCESS;
}

/* Leaves the lock held only on success. */
static CUresult enter_place(const CUmemLocation *location, int type, struct place *place)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	result = location ? find_place(location, type, place) : CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		driver_leave(result);
	return result;
}

CUDA_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	struct place place;

	DRIVER_ENTER_BY(enter_place(location, type, &place));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = place.default_pool;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	struct place place;

	DRIVER_ENTER_BY(enter_place(location, type, &place));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = *place.current_pool ? *place.current_pool : place.default_pool;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	struct place place;

	DRIVER_ENTER_BY(enter_place(location, type, &place));
	if (!pool_is_known(pool) || pool->device != place.default_pool->device ||
	    pool->type != place.default_pool->type ||
	    pool->location.type != place.default_pool->location.type)
		return CUDA_ERROR_INVALID_VALUE;
	*place.current_pool = pool;
	return CUDA_SUCCESS;
}
