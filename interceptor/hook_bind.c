/* SPDX-License-Identifier: Apache-2.0 */
/* Bindings of physical memory beside mappings: tiles of sparse arrays, and multicast objects. A
 * binding holds the memory as a mapping does, even when all its handles are released (driver
 * observation for tiles, H100, 580.159.04; NVIDIA's documentation for multicast objects). */
#include "handover.h"
#include "movable.h"
#include "pages.h"
#include "table.h"

#include <string.h>

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* Return a hash of where the mapped part begins. */
static uint64_t part_of(const void *data, CUdevice ordinal)
{
	const CUarrayMapInfo *info = data;
	uint64_t hash = mix((uint64_t)(uintptr_t)info->resource.array, 1);

	(void)ordinal; /* each part of an array is on its device */
	hash = mix(hash, (uint64_t)info->subresourceType);
	if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
		hash = mix(hash, info->subresource.miptail.layer);
		hash = mix(hash, info->subresource.miptail.offset);
	} else {
		hash = mix(hash, info->subresource.sparseLevel.level);
		hash = mix(hash, info->subresource.sparseLevel.layer);
		hash = mix(hash, info->subresource.sparseLevel.offsetX);
		hash = mix(hash, info->subresource.sparseLevel.offsetY);
		hash = mix(hash, info->subresource.sparseLevel.offsetZ);
	}
	return hash ? hash : 1;
}

/* Return the list with the driver's handles: the program's or, if that has handles of ours, a copy.
 * NULL if there is no memory for it. */
static CUarrayMapInfo *driver_list(CUarrayMapInfo *list, unsigned int count)
{
	CUarrayMapInfo *copy = list;

	for (unsigned int i = 0; i < count; i++) {
		if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
		    !movable_is(list[i].memHandle.memHandle))
			continue;
		if (copy == list) {
			copy = pages_map(count * sizeof(*copy));
			if (!copy)
				return NULL;
			memcpy(copy, list, count * sizeof(*copy));
		}
		copy[i].memHandle.memHandle =
		    movable_stay(list[i].memHandle.memHandle, "a sparse array");
	}
	return copy;
}

/* The driver maps when the stream gets there, and does not report it. Mapped memory is held from
 * now on. Unmapped memory is released now; until then, driver truth shows the difference. */
static CUresult map_array(CUresult (*call)(CUarrayMapInfo *list, unsigned int count,
                                           CUstream stream),
                          CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	CUarrayMapInfo *real;
	CUresult result;

	if (!list)
		return call(list, count, stream);
	real = driver_list(list, count);
	if (!real)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = call(real, count, stream);
	if (real != list)
		munmap(real, count * sizeof(*real));
	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
		const CUarrayMapInfo *info = &list[i];

		if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
			object_bind(info->memHandle.memHandle, 0,
			            (uint64_t)(uintptr_t)info->resource.array, 0, part_of, info);
		else
			object_unbind(part_of(info, -1));
	}
	handover_look();
	return result;
}

#define MAPS(name)                                                                                 \
	CUresult name(CUarrayMapInfo *list, unsigned int count, CUstream stream)                   \
	{                                                                                          \
		return map_array(DRIVER(name), list, count, stream);                               \
	}

MAPS(cuMemMapArrayAsync)
MAPS(cuMemMapArrayAsync_ptsz)

/* A multicast object takes no memory of the device. It is recorded for its bindings. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                           const CUmulticastObjectProp *properties)
{
	CUresult result = DRIVER(cuMulticastCreate)(handle, properties);

	if (result == CUDA_SUCCESS)
		object_made(*handle, -1, 0);
	return result;
}

/* Return the driver's handle. (That of a multicast object is the program's.) */
#define MULTICAST "a multicast object"
static CUmemGenericAllocationHandle given(CUmemGenericAllocationHandle handle)
{
	return movable_stay(handle, MULTICAST);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle multicast, CUdevice device)
{
	return DRIVER(cuMulticastAddDevice)(given(multicast), device);
}

/* A place in a multicast object. Each of its devices has its own bindings at the same offsets.
 * Older entry points take the device, here -1, from the memory. */
struct place {
	CUmemGenericAllocationHandle multicast;
	CUdevice device;
	size_t offset;
};

static uint64_t place_of(const void *data, CUdevice ordinal)
{
	const struct place *place = data;
	CUdevice device = place->device < 0 ? ordinal : place->device;
	uint64_t hash =
	    mix(mix(mix(place->multicast, 2), (uint64_t)(uint32_t)device), place->offset);

	return hash ? hash : 1;
}

static CUresult bound(CUresult result, const struct place *place,
                      CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
	if (result == CUDA_SUCCESS)
		object_bind(handle, address, place->multicast, place->offset, place_of, place);
	return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                            CUmemGenericAllocationHandle handle, size_t from, size_t bytes,
                            unsigned long long flags)
{
	return bound(
	    DRIVER(cuMulticastBindMem)(given(multicast), offset, given(handle), from, bytes, flags),
	    &(struct place){multicast, -1, offset}, handle, 0);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                               size_t offset, CUmemGenericAllocationHandle handle, size_t from,
                               size_t bytes, unsigned long long flags)
{
	return bound(DRIVER(cuMulticastBindMem_v2)(given(multicast), device, offset, given(handle),
	                                           from, bytes, flags),
	             &(struct place){multicast, device, offset}, handle, 0);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	movable_stay_at(address, bytes, MULTICAST);
	return bound(DRIVER(cuMulticastBindAddr)(given(multicast), offset, address, bytes, flags),
	             &(struct place){multicast, -1, offset}, 0, address);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                                size_t offset, CUdeviceptr address, size_t bytes,
                                unsigned long long flags)
{
	movable_stay_at(address, bytes, MULTICAST);
	return bound(
	    DRIVER(cuMulticastBindAddr_v2)(given(multicast), device, offset, address, bytes, flags),
	    &(struct place){multicast, device, offset}, 0, address);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                           size_t bytes)
{
	CUresult result = DRIVER(cuMulticastUnbind)(given(multicast), device, offset, bytes);

	if (result == CUDA_SUCCESS)
		objects_unbind(multicast, device, offset, bytes);
	handover_look();
	return result;
}
