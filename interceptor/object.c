/* SPDX-License-Identifier: Apache-2.0 */
#include "object.h"

#include <stdlib.h>

#define OFFSET_UNIT 21 /* offsets of bindings are kept in units of 2 MiB: their granularity */

struct object *object_new(struct process *process, CUmemGenericAllocationHandle handle,
                          CUdevice ordinal, uint64_t bytes)
{
	struct object *object = malloc(sizeof(*object));

	if (!object)
		return NULL;
	*object =
	    (struct object){.bytes = bytes, .ordinal = ordinal, .handle = handle, .exported = -1};
	object_add_handle(process, object, handle);
	return object;
}

struct object *object_find(struct process *process, CUmemGenericAllocationHandle handle)
{
	struct map_value value;

	return map_get(&process->handles, handle, &value) ? object_of(&value) : NULL;
}

struct mapped_at {
	uint64_t address;
	struct object *object;
};

static bool is_mapped_at(void *data, uint64_t key, struct map_value *value)
{
	struct mapped_at *search = data;

	if (search->address >= key && search->address - key < value->bytes)
		search->object = object_of(value);
	return false;
}

struct object *object_mapped_at(struct process *process, CUdeviceptr address)
{
	struct mapped_at search = {.address = address};

	map_sweep(&process->mappings, is_mapped_at, &search);
	return search.object;
}

struct exported {
	int descriptor;
	struct object *object;
};

static bool was_exported(void *data, uint64_t key, struct map_value *value)
{
	struct exported *search = data;

	(void)key;
	if (object_of(value)->exported == search->descriptor)
		search->object = object_of(value);
	return false;
}

struct object *object_exported_to(struct process *process, int descriptor)
{
	struct exported search = {.descriptor = descriptor};

	map_sweep(&process->handles, was_exported, &search);
	if (!search.object)
		map_sweep(&process->mappings, was_exported, &search);
	return search.object;
}

void object_add_handle(struct process *process, struct object *object,
                       CUmemGenericAllocationHandle handle)
{
	struct map_value value;

	if (map_get(&process->handles, handle, &value) && object_of(&value) == object)
		value.uses++;
	else
		value = object_value(object, 0);
	/* If it cannot be remembered, its release is not seen: the bytes stay charged. */
	(void)map_put(&process->handles, handle, value);
	object->handles++;
}

void object_drop_handle(struct process *process, struct object *object,
                        CUmemGenericAllocationHandle handle)
{
	struct map_value value;

	object->handles--;
	if (!map_get(&process->handles, handle, &value) || object_of(&value) != object)
		return;
	if (--value.uses > 0)
		(void)map_put(&process->handles, handle, value);
	else
		(void)map_take(&process->handles, handle, &value);
}

/* The object is memory, not a multicast object. */
static void drop_memory(struct object *object)
{
	if (object->handles || object->mappings)
		return;
	process_release(object->ordinal, object->bytes);
	free(object);
}

void object_drop_if_unused(struct process *process, struct object *object)
{
	if (object->ordinal >= 0) {
		drop_memory(object);
	} else if (!object->handles && !object->mappings) {
		object_unbind_all(process, object->handle, -1, 0, UINT64_MAX);
		free(object);
	}
}

void object_bind(struct process *process, struct object *object, uint64_t holder, uint64_t key,
                 uint64_t offset)
{
	struct map_value value = object_value(object, holder);

	value.uses = (int32_t)(offset >> OFFSET_UNIT);
	object->mappings++;
	object_unbind(process, key);
	if (map_put(&process->binds, key, value))
		__atomic_store_n(&process->bound, true, __ATOMIC_RELAXED);
}

void object_unbind(struct process *process, uint64_t key)
{
	struct map_value value;

	if (!map_take(&process->binds, key, &value))
		return;
	object_of(&value)->mappings--;
	drop_memory(object_of(&value));
}

/* `visit` of map_sweep() must not use the map: what is found is chained, and dropped afterwards. */
struct range {
	uint64_t holder, begin, end;
	CUdevice device;
	uint64_t *keys;
	size_t count, room;
};

static bool in_range(void *data, uint64_t key, struct map_value *value)
{
	struct range *range = data;
	uint64_t offset = (uint64_t)(uint32_t)value->uses << OFFSET_UNIT;

	if (value->bytes != range->holder || offset < range->begin || offset >= range->end ||
	    (range->device >= 0 && object_of(value)->ordinal != range->device))
		return false;
	if (range->count == range->room) {
		size_t room = range->room ? 2 * range->room : 16;
		uint64_t *more = realloc(range->keys, room * sizeof(*more));

		if (!more)
			return false; /* it stays bound, and charged */
		range->keys = more;
		range->room = room;
	}
	range->keys[range->count++] = key;
	return false;
}

void object_unbind_all(struct process *process, uint64_t holder, CUdevice device, uint64_t offset,
                       uint64_t bytes)
{
	struct range range = {.holder = holder, .device = device, .begin = offset};

	if (!__atomic_load_n(&process->bound, __ATOMIC_RELAXED))
		return;
	range.end = bytes < UINT64_MAX - offset ? offset + bytes : UINT64_MAX;
	map_sweep(&process->binds, in_range, &range);
	for (size_t i = 0; i < range.count; i++)
		object_unbind(process, range.keys[i]);
	free(range.keys);
}
