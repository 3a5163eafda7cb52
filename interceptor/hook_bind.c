/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What else physical memory can be bound to: tiles of sparse arrays, and multicast objects. A
 * binding holds the memory as a mapping does, even when all its handles are released (driver
 * observation for tiles, H100, 580.159.04; NVIDIA's documentation for multicast objects).
 */
#include "object.h"
#include "table.h"

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* The name of the part of an array that is mapped: where it begins. */
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

/*
 * The work is done when the stream gets there, which nobody can ask. What is mapped is held from
 * now on; what is unmapped is given back now, and driver truth sees the difference until then.
 */
static CUresult map_array(CUresult (*call)(CUarrayMapInfo *list, unsigned int count,
                                           CUstream stream),
                          CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	CUresult result = call(list, count, stream);

	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
		const CUarrayMapInfo *info = &list[i];

		if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
			object_bind(info->memHandle.memHandle, 0,
			            (uint64_t)(uintptr_t)info->resource.array, 0, part_of, info);
		else
			object_unbind(part_of(info, -1));
	}
	return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_array(DRIVER(cuMemMapArrayAsync), list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_array(DRIVER(cuMemMapArrayAsync_ptsz), list, count, stream);
}

/* A multicast object is none of the device's memory; it is known for what is bound to it. */
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                           const CUmulticastObjectProp *properties)
{
	CUresult result = DRIVER(cuMulticastCreate)(handle, properties);

	if (result == CUDA_SUCCESS)
		object_made(*handle, -1, 0);
	return result;
}

/* A place in a multicast object. Each of its devices has bindings of its own at the same offsets;
 * the older entry points take the device, here -1, from the memory. */
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
	return bound(DRIVER(cuMulticastBindMem)(multicast, offset, handle, from, bytes, flags),
	             &(struct place){multicast, -1, offset}, handle, 0);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                               size_t offset, CUmemGenericAllocationHandle handle, size_t from,
                               size_t bytes, unsigned long long flags)
{
	return bound(
	    DRIVER(cuMulticastBindMem_v2)(multicast, device, offset, handle, from, bytes, flags),
	    &(struct place){multicast, device, offset}, handle, 0);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	return bound(DRIVER(cuMulticastBindAddr)(multicast, offset, address, bytes, flags),
	             &(struct place){multicast, -1, offset}, 0, address);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                                size_t offset, CUdeviceptr address, size_t bytes,
                                unsigned long long flags)
{
	return bound(
	    DRIVER(cuMulticastBindAddr_v2)(multicast, device, offset, address, bytes, flags),
	    &(struct place){multicast, device, offset}, 0, address);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                           size_t bytes)
{
	CUresult result = DRIVER(cuMulticastUnbind)(multicast, device, offset, bytes);

	if (result == CUDA_SUCCESS)
		objects_unbind(multicast, device, offset, bytes);
	return result;
}
