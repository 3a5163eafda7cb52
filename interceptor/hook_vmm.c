/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory and its mappings. cuMemCreate takes device memory; it goes back when all handles
 * to it are released *and* all mappings of it are gone (driver observation: create, map, release
 * still holds it). Reserved addresses cost nothing.
 */
#include "hook.h"
#include "object.h"

#include <stdlib.h>

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct process *process;
	CUdevice ordinal;
	CUresult result;

	if (!handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return DRIVER(cuMemCreate)(handle, bytes, properties, flags);
	/* The location, not the current context's device. */
	ordinal = properties->location.id;
	if (process_charge(ordinal, bytes, "cuMemCreate") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemCreate)(handle, bytes, properties, flags);
	if (result != CUDA_SUCCESS) {
		process_release(ordinal, bytes);
		return result;
	}
	process_count(ordinal);
	process = process_get();
	lock_take(&process->vmm_lock);
	(void)object_new(process, *handle, ordinal, bytes);
	lock_give(&process->vmm_lock);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct process *process = process_get();
	struct object *object = NULL;
	CUresult result;

	if (process) {
		lock_take(&process->vmm_lock);
		object = object_find(process, handle);
		if (object) {
			/* Out of the map before the driver may give the value to another handle.
			 * The object is kept for the moment by counting as mapped. */
			object->mappings++;
			object_drop_handle(process, object, handle);
		}
		lock_give(&process->vmm_lock);
	}
	result = DRIVER(cuMemRelease)(handle);
	if (object) {
		lock_take(&process->vmm_lock);
		object->mappings--;
		if (result != CUDA_SUCCESS)
			object_add_handle(process, object, handle);
		object_drop_if_unused(process, object);
		lock_give(&process->vmm_lock);
	}
	return result;
}

/* Nobody can ask how large an import is. It is charged as far as it is mapped, before that. *more
 * is what was charged now. False if it does not fit. */
static bool charge_borrowed(struct object *object, size_t offset, size_t bytes, uint64_t *more)
{
	uint64_t end = offset + bytes;

	if (!object->borrowed || end < offset || end <= object->bytes)
		return true;
	if (process_charge(object->ordinal, end - object->bytes, "an import") != CHARGE_OK)
		return false;
	*more = end - object->bytes;
	object->bytes = end;
	return true;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct process *process = process_get();
	struct object *object = NULL;
	uint64_t more = 0;
	CUresult result;

	if (process) {
		lock_take(&process->vmm_lock);
		object = object_find(process, handle);
		if (object && !charge_borrowed(object, offset, bytes, &more)) {
			lock_give(&process->vmm_lock);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (object)
			object->mappings++;
		lock_give(&process->vmm_lock);
	}
	result = DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
	if (object) {
		lock_take(&process->vmm_lock);
		if (result == CUDA_SUCCESS) {
			/* If it cannot be remembered the object stays counted as mapped. */
			(void)map_put(&process->mappings, address, object_value(object, bytes));
		} else {
			object->mappings--;
			object->bytes -= more;
			if (more)
				process_release(object->ordinal, more);
			object_drop_if_unused(process, object);
		}
		lock_give(&process->vmm_lock);
	}
	return result;
}

/*
 * One call may unmap several mappings that lie side by side; part of one it refuses (driver
 * observation). Mappings of memory that we do not know (imports) may lie between. Those that were
 * taken out are chained, to be given back or restored.
 */
struct taken {
	struct taken *next;
	uint64_t address;
	struct map_value value;
};

struct take {
	uint64_t begin, end;
	struct taken *list;
};

static bool take_one(void *data, uint64_t key, struct map_value *value)
{
	struct take *take = data;
	struct taken *taken;

	if (key < take->begin || key >= take->end)
		return false;
	taken = malloc(sizeof(*taken));
	if (!taken)
		return false; /* it stays known, and charged */
	*taken = (struct taken){.next = take->list, .address = key, .value = *value};
	take->list = taken;
	return true;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	struct process *process = process_get();
	struct take take = {.begin = address, .end = address + bytes};
	struct map_value value;
	CUresult result;

	if (process) {
		lock_take(&process->vmm_lock);
		if (map_get(&process->mappings, address, &value) && value.bytes == bytes) {
			if (take_one(&take, address, &value))
				(void)map_take(&process->mappings, address, &value);
		} else {
			map_sweep(&process->mappings, take_one, &take);
		}
		lock_give(&process->vmm_lock);
	}
	result = DRIVER(cuMemUnmap)(address, bytes);
	if (take.list) {
		lock_take(&process->vmm_lock);
		while (take.list) {
			struct taken *taken = take.list;
			struct object *object = object_of(&taken->value);

			take.list = taken->next;
			if (result == CUDA_SUCCESS) {
				object->mappings--;
				object_drop_if_unused(process, object);
			} else {
				(void)map_put(&process->mappings, taken->address, taken->value);
			}
			free(taken);
		}
		lock_give(&process->vmm_lock);
	}
	return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct process *process = process_get();
	struct object *object;
	CUresult result;

	result = DRIVER(cuMemRetainAllocationHandle)(handle, address);
	if (result != CUDA_SUCCESS || !process)
		return result;
	lock_take(&process->vmm_lock);
	object = object_find(process, *handle);
	if (!object) /* all its handles were released */
		object = object_mapped_at(process, (CUdeviceptr)(uintptr_t)address);
	if (object)
		object_add_handle(process, object, *handle);
	lock_give(&process->vmm_lock);
	return result;
}
