/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory and its mappings. cuMemCreate takes device memory; it goes back when all handles
 * to it are released *and* all mappings of it are gone (driver observation: create, map, release
 * still holds it). Reserved addresses cost nothing.
 */
#include "hook.h"

#include <stddef.h>
#include <stdlib.h>

/* One piece of physical memory. Guarded by process.vmm_lock. */
struct object {
	uint64_t bytes;
	CUdevice ordinal;
	uint32_t handles;  /* references by handles */
	uint32_t mappings; /* mapped ranges, and calls that are about to map one */
};

/* Values of process.handles and process.mappings: `owner` is the struct object, `bytes` the
 * length of a mapping. */
static struct object *object_of(const struct map_value *value)
{
	return (struct object *)(uintptr_t)value->owner;
}

static struct map_value value_of(struct object *object, uint64_t bytes)
{
	return (struct map_value){.owner = (uint64_t)(uintptr_t)object, .bytes = bytes};
}

/* With vmm_lock held: give back what nobody refers to. */
static void drop_if_unused(struct object *object)
{
	if (object->handles || object->mappings)
		return;
	process_release(object->ordinal, object->bytes);
	free(object);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct process *process;
	struct object *object;
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemCreate))
		return CUDA_ERROR_NOT_INITIALIZED;
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
	object = malloc(sizeof(*object));
	if (!object)
		return result; /* stays charged until the process ends */
	*object = (struct object){.bytes = bytes, .ordinal = ordinal, .handles = 1};
	lock_take(&process->vmm_lock);
	(void)map_put(&process->handles, *handle, value_of(object, 0));
	lock_give(&process->vmm_lock);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct process *process = process_get();
	struct object *object = NULL;
	struct map_value value;
	CUresult result;

	if (!DRIVER_HAS(cuMemRelease))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (process) {
		lock_take(&process->vmm_lock);
		if (map_get(&process->handles, handle, &value)) {
			object = object_of(&value);
			/* Out of the map before the driver may give the value to another handle.
			 * The object is kept for the moment by counting as mapped. */
			if (--object->handles == 0)
				(void)map_take(&process->handles, handle, &value);
			object->mappings++;
		}
		lock_give(&process->vmm_lock);
	}
	result = DRIVER(cuMemRelease)(handle);
	if (object) {
		lock_take(&process->vmm_lock);
		object->mappings--;
		if (result != CUDA_SUCCESS && object->handles++ == 0)
			(void)map_put(&process->handles, handle, value_of(object, 0));
		drop_if_unused(object);
		lock_give(&process->vmm_lock);
	}
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct process *process = process_get();
	struct object *object = NULL;
	struct map_value value;
	CUresult result;

	if (!DRIVER_HAS(cuMemMap))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (process) {
		lock_take(&process->vmm_lock);
		if (map_get(&process->handles, handle, &value)) {
			object = object_of(&value);
			object->mappings++;
		}
		lock_give(&process->vmm_lock);
	}
	result = DRIVER(cuMemMap)(address, bytes, offset, handle, flags);
	if (object) {
		lock_take(&process->vmm_lock);
		if (result == CUDA_SUCCESS) {
			/* If it cannot be remembered the object stays counted as mapped. */
			(void)map_put(&process->mappings, address, value_of(object, bytes));
		} else {
			object->mappings--;
			drop_if_unused(object);
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

	if (!DRIVER_HAS(cuMemUnmap))
		return CUDA_ERROR_NOT_INITIALIZED;
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
				drop_if_unused(object);
			} else {
				(void)map_put(&process->mappings, taken->address, taken->value);
			}
			free(taken);
		}
		lock_give(&process->vmm_lock);
	}
	return result;
}

struct containing {
	uint64_t address;
	struct object *object;
};

static bool contains(void *data, uint64_t key, struct map_value *value)
{
	struct containing *search = data;

	if (search->address >= key && search->address - key < value->bytes)
		search->object = object_of(value);
	return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	struct process *process = process_get();
	struct map_value value;
	CUresult result;

	if (!DRIVER_HAS(cuMemRetainAllocationHandle))
		return CUDA_ERROR_NOT_INITIALIZED;
	result = DRIVER(cuMemRetainAllocationHandle)(handle, address);
	if (result != CUDA_SUCCESS || !process)
		return result;
	lock_take(&process->vmm_lock);
	if (map_get(&process->handles, *handle, &value)) {
		object_of(&value)->handles++;
	} else {
		struct containing search = {.address = (uint64_t)(uintptr_t)address};

		/* All its handles were released: only its mapping is known. */
		map_sweep(&process->mappings, contains, &search);
		if (search.object) {
			search.object->handles = 1;
			(void)map_put(&process->handles, *handle, value_of(search.object, 0));
		}
	}
	lock_give(&process->vmm_lock);
	return result;
}
