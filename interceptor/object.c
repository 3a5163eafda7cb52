/* SPDX-License-Identifier: Apache-2.0 */
#include "object.h"

#include "pages.h"
#include "recheck.h"
#include "state.h"

#define CHUNK ((size_t)64 * 1024) /* bytes of objects mapped at a time */

bool objects_waiting;

void objects_set_waiting(void)
{
	__atomic_store_n(&objects_waiting, true, __ATOMIC_SEQ_CST);
	recheck_wake();
}

/* The asm hides the address, so that one register reaches all fields: less code to fetch. */
static inline struct objects *objects(void)
{
	struct objects *all = &state_get()->objects;

	__asm__("" : "+r"(all));
	return all;
}

/* --- objects, with the lock held ------------------------------------------------------------ */

static struct object *new_object(struct objects *all)
{
	struct object *object, *chunk;

	if (!all->free) {
		chunk = pages_map(CHUNK);
		if (!chunk)
			return NULL;
		for (size_t i = 0; i < CHUNK / sizeof(*chunk); i++) {
			chunk[i].next = all->free;
			all->free = &chunk[i];
		}
	}
	object = all->free;
	all->free = object->next;
	return object;
}

static void begin(struct objects *all, struct object *object, const struct object *what)
{
	*object = *what;
	object->references = 0;
	object->serial = ++all->serial;
}

static void unbind_all(struct objects *all, uint64_t holder, CUdevice device, uint64_t offset,
                       uint64_t bytes);

static void end(struct objects *all, struct object *object)
{
	object->serial = 0;
	object->next = all->free;
	all->free = object;
}

/* Drops a reference to memory. The last one releases the bytes. */
static void drop_memory(struct objects *all, struct object *object)
{
	if (--object->references > object->exports)
		return;
	if (object->exports) {
		objects_set_waiting();
		return;
	}
	if (object->ordinal >= 0)
		process_release(object->ordinal, object->bytes, KIND_MEMORY);
	import_end(object->import);
	end(all, object);
}

/* Drops a reference to any object. The last one to a multicast object drops its bindings. */
static void drop(struct objects *all, struct object *object)
{
	if (object->ordinal < 0 && object->references == 1)
		unbind_all(all, object->handle, -1, 0, UINT64_MAX);
	drop_memory(all, object);
}

static void add_handle(struct objects *all, struct object *object,
                       CUmemGenericAllocationHandle value)
{
	struct handle *handle = map_put(&all->handles, value, NULL);

	object->references++;
	/* If it cannot be recorded, its bytes stay charged. */
	if (handle && handle->object == object) {
		handle->uses++;
	} else if (handle) {
		handle->object = object;
		handle->uses = 1;
	}
}

static struct object *find(struct objects *all, CUmemGenericAllocationHandle value)
{
	struct handle *handle = map_find(&all->handles, value);

	return handle ? handle->object : NULL;
}

static struct object *find_mapped(struct objects *all, CUdeviceptr address)
{
	struct mapping *at = NULL;

	while ((at = map_next(&all->mapped, at))) {
		if (address >= map_key(at) && address - map_key(at) < at->bytes)
			return at->object;
	}
	return NULL;
}

/* --- handles -------------------------------------------------------------------------------- */

static void make(CUmemGenericAllocationHandle handle, const struct object *what)
{
	STATE_LOCKED(all, objects);
	struct object *object;

	object = new_object(all);
	if (object) {
		begin(all, object, what);
		object->handle = handle;
		add_handle(all, object, handle);
	}
}

void object_made(CUmemGenericAllocationHandle handle, CUdevice ordinal, uint64_t bytes)
{
	make(handle, &(struct object){.ordinal = ordinal, .bytes = bytes});
}

void object_imported(CUmemGenericAllocationHandle handle, CUdevice ordinal, struct import *import)
{
	make(handle, &(struct object){.ordinal = ordinal, .import = import});
}

void object_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
	STATE_LOCKED(all, objects);
	struct object *object;

	object = find(all, handle);
	if (!object) /* all its handles were released */
		object = find_mapped(all, address);
	if (object)
		add_handle(all, object, handle);
}

void object_release(struct releasing *releasing, CUmemGenericAllocationHandle value)
{
	struct objects *all = objects();
	struct object *object = NULL;
	struct handle *handle;

	releasing->object = NULL;
	releasing->last = false;
	LOCKED(&all->lock);
	handle = map_find(&all->handles, value);
	if (handle) {
		/* Removed before the driver may reuse the value. The reference stays until the
		 * driver has answered, except the last one: no other thread can find the object
		 * then. */
		object = handle->object;
		if (!--handle->uses)
			map_remove(&all->handles, handle);
		releasing->last =
		    object->references == 1 && object->ordinal >= 0 && !object->import;
		if (releasing->last) {
			releasing->was = *object;
			end(all, object);
		} else {
			releasing->object = object;
		}
	}
}

void object_released(const struct releasing *releasing, CUmemGenericAllocationHandle handle,
                     CUresult result)
{
	struct objects *all = objects();

	if (releasing->last && result == CUDA_SUCCESS)
		process_release(releasing->was.ordinal, releasing->was.bytes, KIND_MEMORY);
	else if (releasing->last)
		make(handle, &releasing->was);
	if (!releasing->object)
		return;
	LOCKED(&all->lock);
	if (result != CUDA_SUCCESS)
		add_handle(all, releasing->object, handle);
	drop(all, releasing->object);
}

/* --- exports -------------------------------------------------------------------------------- */

static struct object *add_export(struct object *object)
{
	if (object) {
		object->references++;
		object->exports++;
	}
	return object;
}

struct object *object_export(CUmemGenericAllocationHandle handle)
{
	STATE_LOCKED(all, objects);

	return add_export(find(all, handle));
}

struct object *object_keep(struct object *object, CUdevice ordinal, uint64_t bytes)
{
	STATE_LOCKED(all, objects);

	if (!object) {
		object = new_object(all);
		if (object)
			begin(all, object, &(struct object){.ordinal = ordinal, .bytes = bytes});
	}
	return add_export(object);
}

void object_unexport(struct object *object)
{
	STATE_LOCKED(all, objects);

	object->exports--;
	drop(all, object);
}

bool object_waits(const struct object *object)
{
	LOCKED(&objects()->lock);

	return object->references == object->exports;
}

/* --- mappings ------------------------------------------------------------------------------- */

static struct mapping *note_mapping(struct objects *all, struct object *object, CUdeviceptr address,
                                    uint64_t bytes)
{
	bool fresh = false;
	struct mapping *mapping = map_put(&all->mapped, address, &fresh);

	/* The driver refuses an address that is mapped already. */
	if (!fresh)
		return NULL;
	*mapping = (struct mapping){object, bytes};
	return mapping;
}

/* The size of an import is unknown: each mapping is charged before the call. */
bool object_map(struct attempt *attempt, CUdeviceptr address, uint64_t bytes, uint64_t offset,
                CUmemGenericAllocationHandle handle)
{
	struct objects *all = objects();
	struct object *object;
	bool fits = true;

	attempt->charged = 0;
	lock_take(&all->lock);
	object = find(all, handle);
	if (object) {
		object->references++;
		if (__builtin_expect(object->import && object->ordinal >= 0, 0)) {
			lock_give(&all->lock);
			fits = bytes <= UINT64_MAX - offset &&
			       import_reaches(object->import, offset + bytes, LEDGER_CALL_IMPORT,
			                      &attempt->charged);
			lock_take(&all->lock);
		}
		if (__builtin_expect(!fits || !note_mapping(all, object, address, bytes), 0)) {
			drop(all, object);
			object = NULL;
		}
	}
	lock_give(&all->lock);
	attempt->object = object;
	return fits;
}

void object_not_mapped(const struct attempt *attempt, CUdeviceptr address)
{
	struct objects *all = objects();
	struct mapping *mapping;

	if (!attempt->object)
		return;
	if (attempt->charged)
		import_shrinks(attempt->object->import, attempt->charged);
	LOCKED(&all->lock);
	mapping = map_find(&all->mapped, address);
	if (mapping && mapping->object == attempt->object)
		map_remove(&all->mapped, mapping);
	drop(all, attempt->object);
}

/* For a range without exactly one mapping. */
static __attribute__((noinline)) void take_several(struct objects *all, struct unmapping *unmapping,
                                                   CUdeviceptr address, uint64_t bytes)
{
	struct mapping *at = NULL, *kept;

	while ((at = map_next(&all->mapped, at))) {
		if (map_key(at) < address || map_key(at) - address >= bytes)
			continue;
		if (!unmapping->any_several)
			memset(&unmapping->several, 0, sizeof(unmapping->several));
		unmapping->any_several = true;
		kept = map_put(&unmapping->several, map_key(at), NULL);
		if (!kept)
			continue; /* it stays recorded and charged */
		*kept = *at;
		at = map_remove_at(&all->mapped, at);
	}
}

void object_unmap(struct unmapping *unmapping, CUdeviceptr address, uint64_t bytes)
{
	struct objects *all = objects();
	struct mapping *at;
	struct object *object;

	unmapping->address = address;
	unmapping->one.object = NULL;
	unmapping->serial = 0;
	unmapping->any_several = false;
	LOCKED(&all->lock);
	at = map_find(&all->mapped, address);
	if (__builtin_expect(at && at->bytes == bytes, 1)) {
		object = at->object;
		unmapping->one = *at;
		map_remove(&all->mapped, at);
		if (__builtin_expect(object->references > 1 + object->exports, 1)) {
			unmapping->serial = object->serial;
			unmapping->bytes = object->bytes;
			unmapping->ordinal = object->ordinal;
			object->references--;
		}
	} else {
		take_several(all, unmapping, address, bytes);
	}
}

static void end_mapping(struct objects *all, CUdeviceptr address, const struct mapping *was,
                        CUresult result)
{
	struct mapping *again;

	if (result == CUDA_SUCCESS) {
		drop(all, was->object);
		return;
	}
	again = map_put(&all->mapped, address, NULL);
	if (again)
		*again = *was;
}

/* The driver refused the call after the reference was dropped. Other references may have been
 * dropped since, and the charge released. */
static void restore_reference(struct objects *all, struct unmapping *unmapping)
{
	struct object *object = unmapping->one.object;

	if (object->serial != unmapping->serial) {
		object = new_object(all);
		if (!object)
			return;
		begin(all, object,
		      &(struct object){.bytes = unmapping->bytes, .ordinal = unmapping->ordinal});
		process_charge_anyway(object->ordinal, object->bytes, KIND_MEMORY);
		unmapping->one.object = object;
	}
	object->references++;
}

void object_unmapped_(struct unmapping *unmapping, CUresult result)
{
	struct objects *all = objects();
	struct mapping *at = NULL;

	if (!unmapping->one.object && !unmapping->any_several)
		return;
	lock_take(&all->lock);
	if (unmapping->one.object && unmapping->serial) /* the driver refused it */
		restore_reference(all, unmapping);
	if (unmapping->one.object)
		end_mapping(all, unmapping->address, &unmapping->one, result);
	while (unmapping->any_several && (at = map_next(&unmapping->several, at)))
		end_mapping(all, map_key(at), at, result);
	lock_give(&all->lock);
	if (unmapping->any_several)
		map_end(&unmapping->several);
}

/* --- bindings ------------------------------------------------------------------------------- */

/* Called with the lock held. */
static void unbind(struct objects *all, uint64_t part)
{
	struct binding *binding = map_find(&all->bound, part);
	struct object *object = binding ? binding->object : NULL;

	if (!binding)
		return;
	map_remove(&all->bound, binding);
	drop(all, object);
}

static void unbind_all(struct objects *all, uint64_t holder, CUdevice device, uint64_t offset,
                       uint64_t bytes)
{
	uint64_t end = bytes < UINT64_MAX - offset ? offset + bytes : UINT64_MAX;
	struct binding *at = NULL;

	while ((at = map_next(&all->bound, at))) {
		struct object *object = at->object;

		if (at->holder != holder || at->offset < offset || at->offset >= end ||
		    (device >= 0 && object->ordinal != device))
			continue;
		at = map_remove_at(&all->bound, at);
		drop_memory(all, object); /* no multicast object is bound to another */
	}
}

void object_bind(CUmemGenericAllocationHandle handle, CUdeviceptr address, uint64_t holder,
                 uint64_t offset, part_function part, const void *data)
{
	STATE_LOCKED(all, objects);
	struct binding *binding;
	struct object *object;
	uint64_t key;

	object = address ? find_mapped(all, address) : find(all, handle);
	key = part(data, object ? object->ordinal : -1);
	if (object)
		object->references++; /* first, since it may be the object bound there already */
	unbind(all, key);
	if (object) {
		binding = map_put(&all->bound, key, NULL);
		if (binding)
			*binding = (struct binding){object, holder, offset};
		__atomic_store_n(&all->any_bound, true, __ATOMIC_RELAXED);
	}
}

void object_unbind(uint64_t part)
{
	STATE_LOCKED(all, objects);

	unbind(all, part);
}

void objects_unbind(uint64_t holder, CUdevice device, uint64_t offset, uint64_t bytes)
{
	struct objects *all = objects();

	if (!__atomic_load_n(&all->any_bound, __ATOMIC_RELAXED))
		return;
	LOCKED(&all->lock);
	unbind_all(all, holder, device, offset, bytes);
}
