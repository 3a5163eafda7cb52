/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory and its mappings. cuMemCreate's memory is freed when all its handles are released
 * and all its mappings are gone (driver observation). Reserved addresses cost nothing.
 */
#include "grant.h"
#include "handover.h"
#include "movable.h"
#include "piece.h"
#include "table.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
	CUdevice ordinal;
	CUresult result;

	if (!handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return DRIVER(cuMemCreate)(handle, bytes, properties, flags);
	/* Memory is charged to the device of its location, not to the current context's. */
	ordinal = properties->location.id;
	if (grant(ordinal, bytes, KIND_MEMORY, LEDGER_CALL_CREATE) != GRANTED)
		return grant_error_on(ordinal);
	result = movable_suits(properties, flags)
	             ? THROUGH(movable_create)(handle, bytes, properties)
	             : DRIVER(cuMemCreate)(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		process_release(ordinal, bytes, KIND_MEMORY);
		return result;
	}
	grant_count(ordinal);
	object_made(*handle, ordinal, bytes);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct releasing releasing;
	CUresult result;

	object_release(&releasing, handle);
	result =
	    movable_is(handle) ? THROUGH(movable_release)(handle) : DRIVER(cuMemRelease)(handle);
	object_released(&releasing, handle, result);
	handover_look();
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct attempt attempt;
	CUresult result;

	if (!object_map(&attempt, address, bytes, offset, handle))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = movable_is(handle) ? THROUGH(movable_map)(address, bytes, offset, handle, flags)
	                            : DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
	if (__builtin_expect(result != CUDA_SUCCESS, 0))
		object_not_mapped(&attempt, address);
	return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	struct unmapping unmapping;
	CUresult result;

	object_unmap(&unmapping, address, bytes);
	result = movable_unmap(address, bytes);
	if (object_unmapped(&unmapping, result))
		handover_look();
	return result;
}

/* Memory that the host may access is not moved: for the host, cuMemGetAccess reports the device's
 * access (driver observation), so a move could not restore the host's. */
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *list,
                        size_t count)
{
	for (size_t i = 0; list && i < count; i++) {
		if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			movable_stay_at(address, bytes, "the host");
	}
	return DRIVER(cuMemSetAccess)(address, bytes, list, count);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult result;

	/* The driver refuses memory of cuMemAlloc. Ours is mapped memory, so refuse it here. */
	if (piece_has((CUdeviceptr)(uintptr_t)address, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	result = movable_retain(handle, address);
	if (result == CUDA_SUCCESS)
		object_retained(*handle, (CUdeviceptr)(uintptr_t)address);
	return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle handle)
{
	return movable_is(handle)
	           ? THROUGH(movable_properties)(properties, handle)
	           : DRIVER(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}
