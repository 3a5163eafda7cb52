/* SPDX-License-Identifier: Apache-2.0 */
#include "object.h"

#include "state.h"

#include <sys/mman.h>

#define CHUNK ((size_t)64 * 1024) /* bytes of objects that are mapped at one time */

static struct objects *objects(void)
{
	return &state_of(process_get())->objects;
}

/* --- objects, with the lock held ------------------------------------------------------------- */

static struct object *new_object(struct objects *all)
{
	struct object *object, *chunk;

	if (!all->free) {
		chunk =
		    mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (chunk == MAP_FAILED)
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

/* Make it what `what` says, with no reference yet. */
static void begin(struct objects *all, struct object *object, const struct object *what)
{
	*object = *what;
	object->references = 0;
	object->serial = ++all->serial;
}

static void unbind_all(struct objects *all, uint64_t holder, CUdevice device, uint64_t offset,
                       uint64_t bytes);

/* Nothing refers to it any more. */
static void end(struct objects *all, struct object *object)
{
	object->serial = 0;
	object->next = all->free;
	all->free = object;
}

/* One reference less of memory: what nothing refers to is given back. */
static void drop_memory(struct objects *all, struct object *object)
{
	if (--object->references)
		return;
	if (object->ordinal >= 0)
		process_release(object->ordinal, object->bytes, KIND_MEMORY);
	end(all, object);
}

/* The same of any object: a multicast object's last one takes what is bound to it. */
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
	/* If it cannot be remembered, its release is not seen: the bytes stay charged. */
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

/* --- handles --------------------------------------------------------------------------------- */

static void make(CUmemGenericAllocationHandle handle, const struct object *what)
{
	struct objects *all = objects();
	struct object *object;

	lock_take(&all->lock);
	/* What is remembered was begun by objects(). Where memory moves, all pass by movable.h. */
	__atomic_store_n(&all->usual, at_hand.wiped && !process_seen()->gate.moves,
	                 __ATOMIC_RELAXED);
	object = new_object(all);
	if (object) {
		begin(all, object, what);
		object->handle = handle;
		add_handle(all, object, handle);
	}
	lock_give(&all->lock);
}

void object_made(CUmemGenericAllocationHandle handle, CUdevice ordinal, uint64_t bytes)
{
	make(handle, &(struct object){.ordinal = ordinal, .bytes = bytes, .exported = -1});
}

void object_borrowed(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	make(handle, &(struct object){.ordinal = ordinal, .borrowed = true, .exported = -1});
}

void object_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
	struct objects *all = objects();
	struct object *object;

	lock_take(&all->lock);
	object = find(all, handle);
	if (!object) /* all its handles were released */
		object = find_mapped(all, address);
	if (object)
		add_handle(all, object, handle);
	lock_give(&all->lock);
}

void object_release(struct releasing *releasing, CUmemGenericAllocationHandle value)
{
	struct objects *all = objects();
	struct object *object = NULL;
	struct handle *handle;

	releasing->object = NULL;
	releasing->last = false;
	lock_take(&all->lock);
	handle = map_find(&all->handles, value);
	if (handle) {
		/* Out of the map before the driver may give the value to another object. Its
		 * reference stays until the driver has answered, but for the last one: nobody else
		 * can find what nothing refers to. */
		object = handle->object;
		if (!--handle->uses)
			map_remove(&all->handles, handle);
		releasing->last = object->references == 1 && object->ordinal >= 0;
		if (releasing->last) {
			releasing->was = *object;
			end(all, object);
		} else {
			releasing->object = object;
		}
	}
	lock_give(&all->lock);
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
	lock_take(&all->lock);
	if (result != CUDA_SUCCESS)
		add_handle(all, releasing->object, handle);
	drop(all, releasing->object);
	lock_give(&all->lock);
}

void object_exported(CUmemGenericAllocationHandle value, int descriptor)
{
	struct objects *all = objects();
	struct handle *at = NULL;
	struct mapping *mapped = NULL;
	struct object *object;

	lock_take(&all->lock);
	while ((at = map_next(&all->handles, at))) {
		if (at->object->exported == descriptor)
			at->object->exported = -1;
	}
	while ((mapped = map_next(&all->mapped, mapped))) {
		if (mapped->object->exported == descriptor)
			mapped->object->exported = -1;
	}
	object = find(all, value);
	if (object)
		object->exported = descriptor;
	lock_give(&all->lock);
}

bool object_reimported(CUmemGenericAllocationHandle value, int descriptor)
{
	struct objects *all = objects();
	struct object *object = NULL;
	struct handle *at = NULL;
	struct mapping *mapped = NULL;

	lock_take(&all->lock);
	while (!object && (at = map_next(&all->handles, at))) {
		if (at->object->exported == descriptor)
			object = at->object;
	}
	while (!object && (mapped = map_next(&all->mapped, mapped))) {
		if (mapped->object->exported == descriptor)
			object = mapped->object;
	}
	if (object)
		add_handle(all, object, value);
	lock_give(&all->lock);
	return object;
}

/* --- mappings -------------------------------------------------------------------------------- */

/* Nobody can ask how large an import is. It is charged as far as it is mapped, before that. How
 * much more that is. */
static uint64_t more_of_borrowed(const struct object *object, uint64_t offset, uint64_t bytes)
{
	uint64_t end = offset + bytes;

	return object->borrowed && end >= offset && end > object->bytes ? end - object->bytes : 0;
}

static struct mapping *note_mapping(struct objects *all, struct object *object, CUdeviceptr address,
                                    uint64_t bytes)
{
	bool fresh = false;
	struct mapping *mapping = map_put(&all->mapped, address, &fresh);

	/* One that is there already is the driver's to refuse. */
	if (!fresh)
		return NULL;
	*mapping = (struct mapping){object, bytes};
	return mapping;
}

/*
 * For the usual cases: false if the lock is held, nothing was made yet, or these may be another
 * process's. The compiler is not told which address *all is: reaching all fields by one register
 * makes the code a cache line shorter.
 */
static inline __attribute__((always_inline)) bool try_lock(struct objects **all)
{
	*all = &state.objects;
	__asm__("" : "+r"(*all));
	return __builtin_expect(__atomic_load_n(&(*all)->usual, __ATOMIC_RELAXED), 1) &&
	       __builtin_expect(lock_try(&(*all)->lock), 1);
}

struct object *object_map_usual(CUdeviceptr address, uint64_t bytes,
                                CUmemGenericAllocationHandle value)
{
	struct mapping *mapping = NULL;
	struct object *object = NULL;
	struct handle *handle;
	struct objects *all;

	if (__builtin_expect(!try_lock(&all), 0))
		return NULL;
	handle = map_find_home(&all->handles, value);
	if (__builtin_expect(handle && !handle->object->borrowed, 1))
		mapping = map_put_home(&all->mapped, address);
	if (__builtin_expect(mapping != NULL, 1)) {
		object = handle->object;
		*mapping = (struct mapping){object, bytes};
		object->references++;
	}
	lock_give(&all->lock);
	return object;
}

bool object_map(struct attempt *attempt, CUdeviceptr address, uint64_t bytes, uint64_t offset,
                CUmemGenericAllocationHandle handle)
{
	struct objects *all = objects();
	bool fits = true;
	uint64_t more;

	attempt->object = NULL;
	attempt->charged = 0;
	lock_take(&all->lock);
	attempt->object = find(all, handle);
	if (attempt->object) {
		more = more_of_borrowed(attempt->object, offset, bytes);
		if (__builtin_expect(more != 0, 0)) {
			fits = grant(attempt->object->ordinal, more, KIND_MEMORY,
			             ATTACH_CALL_IMPORT) == GRANTED;
			attempt->charged = fits ? more : 0;
			attempt->object->bytes += attempt->charged;
		}
		if (fits && note_mapping(all, attempt->object, address, bytes))
			attempt->object->references++;
		else
			attempt->object = NULL;
	}
	lock_give(&all->lock);
	return fits;
}

void object_not_mapped(const struct attempt *attempt, CUdeviceptr address)
{
	struct objects *all = objects();
	struct mapping *mapping;

	if (!attempt->object)
		return;
	lock_take(&all->lock);
	mapping = map_find(&all->mapped, address);
	if (mapping && mapping->object == attempt->object)
		map_remove(&all->mapped, mapping);
	attempt->object->bytes -= attempt->charged;
	if (attempt->charged)
		process_release(attempt->object->ordinal, attempt->charged, KIND_MEMORY);
	drop(all, attempt->object);
	lock_give(&all->lock);
}

/* All mappings in the range, of which there is not just one. */
static __attribute__((noinline)) void take_several(struct objects *all, struct unmapping *unmapping,
                                                   CUdeviceptr address, uint64_t bytes)
{
	struct mapping *at = NULL, *kept;

	while ((at = map_next(&all->mapped, at))) {
		struct mapping *gone = at;

		if (map_key(at) < address || map_key(at) - address >= bytes)
			continue;
		if (!unmapping->any_several)
			memset(&unmapping->several, 0, sizeof(unmapping->several));
		unmapping->any_several = true;
		kept = map_put(&unmapping->several, map_key(at), NULL);
		if (!kept)
			continue; /* it stays known, and charged */
		*kept = *at;
		at = map_before(&all->mapped, at);
		map_remove(&all->mapped, gone);
	}
}

bool object_unmap_usual(struct unmapping *unmapping, CUdeviceptr address, uint64_t bytes)
{
	struct mapping *mapping;
	struct object *object;
	struct objects *all;
	bool done = false;

	if (__builtin_expect(!try_lock(&all), 0))
		return false;
	mapping = map_find_home(&all->mapped, address);
	if (__builtin_expect(mapping && mapping->bytes == bytes, 1)) {
		object = mapping->object;
		if (__builtin_expect(object->references > 1, 1)) {
			object->references--;
			unmapping->one = *mapping;
			unmapping->bytes = object->bytes;
			unmapping->serial = object->serial;
			unmapping->ordinal = object->ordinal;
			map_remove(&all->mapped, mapping);
			done = true;
		}
	}
	lock_give(&all->lock);
	return done;
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
	lock_take(&all->lock);
	at = map_find(&all->mapped, address);
	if (__builtin_expect(at && at->bytes == bytes, 1)) {
		object = at->object;
		unmapping->one = *at;
		map_remove(&all->mapped, at);
		if (object->references > 1) {
			unmapping->serial = object->serial;
			unmapping->bytes = object->bytes;
			unmapping->ordinal = object->ordinal;
			object->references--;
		}
	} else {
		take_several(all, unmapping, address, bytes);
	}
	lock_give(&all->lock);
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

/* The driver refused it after its reference was given back. Who else had one may have given it
 * back, too, meanwhile, and the charge with it. */
static void take_back(struct objects *all, struct unmapping *unmapping)
{
	struct object *object = unmapping->one.object;

	if (object->serial != unmapping->serial) {
		object = new_object(all);
		if (!object)
			return;
		begin(all, object,
		      &(struct object){.bytes = unmapping->bytes,
		                       .ordinal = unmapping->ordinal,
		                       .exported = -1});
		process_charge_anyway(object->ordinal, object->bytes, KIND_MEMORY);
		unmapping->one.object = object;
	}
	object->references++;
}

void object_not_unmapped(struct unmapping *unmapping, CUdeviceptr address, CUresult result)
{
	unmapping->address = address;
	unmapping->any_several = false;
	object_unmapped(unmapping, result);
}

void object_unmapped(struct unmapping *unmapping, CUresult result)
{
	struct objects *all = objects();
	struct mapping *at = NULL;

	if ((!unmapping->one.object && !unmapping->any_several) ||
	    (unmapping->serial && result == CUDA_SUCCESS))
		return;
	lock_take(&all->lock);
	if (unmapping->one.object && unmapping->serial) /* the driver refused it */
		take_back(all, unmapping);
	if (unmapping->one.object)
		end_mapping(all, unmapping->address, &unmapping->one, result);
	while (unmapping->any_several && (at = map_next(&unmapping->several, at)))
		end_mapping(all, map_key(at), at, result);
	lock_give(&all->lock);
	if (unmapping->any_several)
		map_end(&unmapping->several);
}

/* --- bindings -------------------------------------------------------------------------------- */

/* With the lock held. */
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
		struct binding *gone = at;
		struct object *object = at->object;

		if (at->holder != holder || at->offset < offset || at->offset >= end ||
		    (device >= 0 && object->ordinal != device))
			continue;
		at = map_before(&all->bound, at);
		map_remove(&all->bound, gone);
		drop_memory(all, object); /* no multicast object is bound to another */
	}
}

void object_bind(CUmemGenericAllocationHandle handle, CUdeviceptr address, uint64_t holder,
                 uint64_t offset, part_function part, const void *data)
{
	struct objects *all = objects();
	struct binding *binding;
	struct object *object;
	uint64_t key;

	lock_take(&all->lock);
	object = address ? find_mapped(all, address) : find(all, handle);
	key = part(data, object ? object->ordinal : -1);
	if (object)
		object->references++; /* first: it may be what is bound there already */
	unbind(all, key);
	if (object) {
		binding = map_put(&all->bound, key, NULL);
		if (binding)
			*binding = (struct binding){object, holder, offset};
		__atomic_store_n(&all->any_bound, true, __ATOMIC_RELAXED);
	}
	lock_give(&all->lock);
}

void object_unbind(uint64_t part)
{
	struct objects *all = objects();

	lock_take(&all->lock);
	unbind(all, part);
	lock_give(&all->lock);
}

void objects_unbind(uint64_t holder, CUdevice device, uint64_t offset, uint64_t bytes)
{
	struct objects *all = objects();

	if (!__atomic_load_n(&all->any_bound, __ATOMIC_RELAXED))
		return;
	lock_take(&all->lock);
	unbind_all(all, holder, device, offset, bytes);
	lock_give(&all->lock);
}
