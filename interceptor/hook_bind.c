/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What else physical memory can be bound to: tiles of sparse arrays, and multicast objects. A
 * binding holds the memory as a mapping does, even when all its handles are released (driver
 * observation for tiles, H100, 580.159.04; NVIDIA's documentation for multicast objects).
 */
#include "hook.h"
#include "object.h"

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* The name of the part of an array that is mapped: where it begins. */
static uint64_t part_of(const CUarrayMapInfo *info)
{
	uint64_t hash = mix((uint64_t)(uintptr_t)info->resource.array, 1);

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
	struct process *process = process_get();
	CUresult result = call(list, count, stream);

	if (result != CUDA_SUCCESS || !process)
		return result;
	lock_take(&process->vmm_lock);
	for (unsigned int i = 0; i < count; i++) {
		const CUarrayMapInfo *info = &list[i];
		struct object *object = NULL;

		if (info->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
			object = object_find(process, info->memHandle.memHandle);
		if (object)
			object_bind(process, object, (uint64_t)(uintptr_t)info->resource.array,
			            part_of(info), 0);
		else
			object_unbind(process, part_of(info));
	}
	lock_give(&process->vmm_lock);
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
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMulticastCreate)(handle, properties);
	if (result == CUDA_SUCCESS && process) {
		lock_take(&process->vmm_lock);
		(void)object_new(process, *handle, -1, 0);
		lock_give(&process->vmm_lock);
	}
	return result;
}

/* Each device of the object has bindings of its own at the same offsets. */
static uint64_t place_in(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset)
{
	uint64_t hash = mix(mix(mix(multicast, 2), (uint64_t)(uint32_t)device), offset);

	return hash ? hash : 1;
}

/* `device` is -1 where the older entry points take it from the memory. */
static CUresult bound(CUresult result, CUmemGenericAllocationHandle multicast, CUdevice device,
                      size_t offset, CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
	struct process *process = process_get();
	struct object *object;

	if (result != CUDA_SUCCESS || !process)
		return result;
	lock_take(&process->vmm_lock);
	object = address ? object_mapped_at(process, address) : object_find(process, handle);
	if (object)
		object_bind(process, object, multicast,
		            place_in(multicast, device < 0 ? object->ordinal : device, offset),
		            offset);
	lock_give(&process->vmm_lock);
	return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                            CUmemGenericAllocationHandle handle, size_t from, size_t bytes,
                            unsigned long long flags)
{
	return bound(DRIVER(cuMulticastBindMem)(multicast, offset, handle, from, bytes, flags),
	             multicast, -1, offset, handle, 0);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                               size_t offset, CUmemGenericAllocationHandle handle, size_t from,
                               size_t bytes, unsigned long long flags)
{
	return bound(
	    DRIVER(cuMulticastBindMem_v2)(multicast, device, offset, handle, from, bytes, flags),
	    multicast, device, offset, handle, 0);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
                             CUdeviceptr address, size_t bytes, unsigned long long flags)
{
	return bound(DRIVER(cuMulticastBindAddr)(multicast, offset, address, bytes, flags),
	             multicast, -1, offset, 0, address);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
                                size_t offset, CUdeviceptr address, size_t bytes,
                                unsigned long long flags)
{
	return bound(
	    DRIVER(cuMulticastBindAddr_v2)(multicast, device, offset, address, bytes, flags),
	    multicast, device, offset, 0, address);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                           size_t bytes)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMulticastUnbind)(multicast, device, offset, bytes);
	if (result == CUDA_SUCCESS && process) {
		lock_take(&process->vmm_lock);
		object_unbind_all(process, multicast, device, offset, bytes);
		lock_give(&process->vmm_lock);
	}
	return result;
}
