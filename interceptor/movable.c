/* SPDX-License-Identifier: Apache-2.0 */
#include "movable.h"

#include "quiet.h"
#include "say.h"
#include "state.h"

#include <unistd.h>

#define ENDED 64 /* handles released at a time */

static bool moves_itself(void)
{
	return __atomic_load_n(&process_seen()->gate.moves, __ATOMIC_ACQUIRE);
}

/* Reports whether this process sees a device that accesses the card's memory without the driver: a
 * network card, or one that copies by itself. */
static bool has_rdma_device(void)
{
	static const char *const devices[] = {"/dev/infiniband", "/dev/hfi1_0", "/dev/gdrdrv",
	                                      "/dev/nvidia-fs0"};
	bool any = false;

	QUIETLY;
	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices) && !any; i++)
		any = access(devices[i], F_OK) == 0;
	return any;
}

bool movable_suits(const CUmemAllocationProp *properties, unsigned long long flags)
{
	const CUmemAllocationProp none = {.allocFlags.gpuDirectRDMACapable =
	                                      properties->allocFlags.gpuDirectRDMACapable};

	if (!moves_itself() || (none.allocFlags.gpuDirectRDMACapable && has_rdma_device()))
		return false;
	(void)process_current_ordinal(); /* learns the number of devices */
	return process_has_one_device() && !flags &&
	       properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       !properties->win32HandleMetaData &&
	       memcmp(&properties->allocFlags, &none.allocFlags, sizeof(none.allocFlags)) == 0;
}

/* --- with the lock held --------------------------------------------------------------------- */

/* Returns the object for which the program has this number. */
static struct movable *find(struct movables *all, CUmemGenericAllocationHandle handle)
{
	struct movable *movable = map_find(&all->known, handle);

	return movable && movable->uses ? movable : NULL;
}

static struct movable_place *find_place(struct movables *all, CUdeviceptr address)
{
	struct movable_place *at = map_find(&all->places, address);

	if (at)
		return at;
	while ((at = map_next(&all->places, at))) {
		if (address >= map_key(at) && address - map_key(at) < at->bytes)
			return at;
	}
	return NULL;
}

/* Returns the driver's handle if nothing refers to the object any more, else 0. */
static CUmemGenericAllocationHandle remove_place(struct movables *all, struct movable_place *place)
{
	CUdeviceptr address = map_key(place), next = place->next, *link;
	struct movable *movable = map_find(&all->known, place->number);
	CUmemGenericAllocationHandle driver;

	for (link = &movable->first; *link != address;)
		link = &map_find(&all->places, *link)->next;
	*link = next;
	map_remove(&all->places, place);
	if (movable->first || movable->uses)
		return 0;
	driver = movable->driver;
	map_remove(&all->known, movable);
	return driver;
}

/* --- the driver's functions, behind the gate ------------------------------------------------ */

CUresult movable_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                        const CUmemAllocationProp *properties)
{
	struct movables *all = &state.movables;
	CUmemGenericAllocationHandle driver;
	struct movable *movable;
	uint64_t number;
	CUresult result = BEHIND(cuMemCreate)(&driver, bytes, properties, 0);

	if (result != CUDA_SUCCESS)
		return result;
	lock_take(&all->lock);
	number = MOVABLE_MARK << 48 | ++all->made;
	movable = map_put(&all->known, number, NULL);
	if (movable)
		*movable = (struct movable){
		    .driver = driver, .properties = *properties, .bytes = bytes, .uses = 1};
	lock_give(&all->lock);
	*handle = movable ? number : driver;
	return result;
}

CUresult movable_release(CUmemGenericAllocationHandle handle)
{
	struct movables *all = STATE_TAKE(movables);
	struct movable *movable, was = {0};
	CUresult result = CUDA_SUCCESS;

	movable = find(all, handle);
	if (!movable) {
		result = CUDA_ERROR_INVALID_VALUE;
	} else if (movable->uses > 1 || movable->first) {
		movable->uses--;
	} else {
		was = *movable;
		map_remove(&all->known, movable);
	}
	lock_give(&all->lock);
	if (!was.driver)
		return result;
	result = BEHIND(cuMemRelease)(was.driver);
	if (result == CUDA_SUCCESS)
		return result;
	lock_take(&all->lock);
	movable = map_put(&all->known, handle, NULL);
	if (movable)
		*movable = was;
	lock_give(&all->lock);
	return result;
}

static CUmemGenericAllocationHandle driver_of(CUmemGenericAllocationHandle handle)
{
	STATE_LOCKED(all, movables);
	const struct movable *movable = find(all, handle);

	return movable ? movable->driver : 0;
}

CUresult movable_map(CUdeviceptr address, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct movables *all = &state.movables;
	CUmemGenericAllocationHandle driver = driver_of(handle), stale = 0;
	struct movable *movable;
	struct movable_place *place;
	CUresult result;

	if (!driver)
		return CUDA_ERROR_INVALID_VALUE;
	result = BEHIND(cuMemMap)(address, bytes, offset, driver, flags);
	if (result != CUDA_SUCCESS)
		return result;
	lock_take(&all->lock);
	place = map_find(&all->places, address);
	if (place) /* unmapped by another thread, which is about to remove it */
		stale = remove_place(all, place);
	movable = map_find(&all->known, handle);
	place = movable ? map_put(&all->places, address, NULL) : NULL;
	if (place) {
		*place = (struct movable_place){.number = handle,
		                                .bytes = bytes,
		                                .offset = offset,
		                                .serial = ++all->serial,
		                                .next = movable->first};
		movable->first = address;
	}
	if (movable && (!place || flags))
		movable->stays = true;
	lock_give(&all->lock);
	if (stale)
		(void)BEHIND(cuMemRelease)(stale);
	return result;
}

/* Removes places in the range, of up to `serial`, and lists the handles to release. Returns how
 * many; a full list may not be all. */
static size_t remove_places(CUdeviceptr address, size_t bytes, uint64_t serial,
                            CUmemGenericAllocationHandle ended[ENDED])
{
	STATE_LOCKED(all, movables);
	struct movable_place *at = NULL, *gone;
	size_t count = 0;

	gone = map_find(&all->places, address);
	if (gone && gone->bytes == bytes && gone->serial <= serial) {
		ended[0] = remove_place(all, gone);
		count = ended[0] != 0;
	} else {
		while (count < ENDED && (at = map_next(&all->places, at))) {
			if (map_key(at) < address || map_key(at) - address >= bytes ||
			    at->serial > serial)
				continue;
			gone = at;
			at = map_before(&all->places, at);
			ended[count] = remove_place(all, gone);
			count += ended[count] != 0;
		}
	}
	return count;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
	struct movables *all = &state.movables;
	CUmemGenericAllocationHandle ended[ENDED];
	uint64_t serial;
	size_t count;
	CUresult result;

	/* Later mappings have higher ones. */
	lock_take(&all->lock);
	serial = all->serial;
	lock_give(&all->lock);
	result = BEHIND(cuMemUnmap)(address, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	do {
		count = remove_places(address, bytes, serial, ended);
		for (size_t i = 0; i < count; i++)
			(void)BEHIND(cuMemRelease)(ended[i]);
	} while (count == ENDED);
	return result;
}

CUresult movable_unmap(CUdeviceptr address, size_t bytes)
{
	return moves_itself() ? THROUGH(unmap)(address, bytes) : DRIVER(cuMemUnmap)(address, bytes);
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *address)
{
	struct movables *all = STATE_TAKE(movables);
	struct movable_place *place;

	place = handle ? find_place(all, (CUdeviceptr)(uintptr_t)address) : NULL;
	if (place) {
		map_find(&all->known, place->number)->uses++;
		*handle = place->number;
	}
	lock_give(&all->lock);
	return place ? CUDA_SUCCESS : BEHIND(cuMemRetainAllocationHandle)(handle, address);
}

CUresult movable_retain(CUmemGenericAllocationHandle *handle, void *address)
{
	return moves_itself() ? THROUGH(retain)(handle, address)
	                      : DRIVER(cuMemRetainAllocationHandle)(handle, address);
}

CUresult movable_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	CUmemGenericAllocationHandle driver = driver_of(handle);

	return driver ? BEHIND(cuMemGetAllocationPropertiesFromHandle)(properties, driver)
	              : CUDA_ERROR_INVALID_VALUE;
}

/* --- excluding memory from moves ------------------------------------------------------------ */

static void report_staying(const char *taker)
{
	say_once(process_get(), ONCE_STAYS,
	         "memory used by %s stays on the device when the elastic slice is evicted", taker);
}

static CUmemGenericAllocationHandle stay(CUmemGenericAllocationHandle handle)
{
	STATE_LOCKED(all, movables);
	struct movable *movable = find(all, handle);

	if (!movable)
		return 0;
	movable->stays = true;
	return movable->driver;
}

CUmemGenericAllocationHandle movable_stay_(CUmemGenericAllocationHandle handle, const char *taker)
{
	CUmemGenericAllocationHandle driver = THROUGH(stay)(handle);

	if (driver)
		report_staying(taker);
	return driver;
}

/* (If the memory is on the host, the call that follows brings it back, and then it stays.) */
void movable_stay_at(CUdeviceptr address, size_t bytes, const char *taker)
{
	struct movables *all = &state.movables;
	struct movable_place *at = NULL;
	bool any = false;

	if (!moves_itself())
		return;
	lock_take(&all->lock);
	while ((at = map_next(&all->places, at))) {
		if (map_key(at) < address ? address - map_key(at) < at->bytes
		                          : map_key(at) - address < bytes) {
			map_find(&all->known, at->number)->stays = true;
			any = true;
		}
	}
	lock_give(&all->lock);
	if (any)
		report_staying(taker);
}

/* --- for the mover, which takes the lock although no other thread is behind the gate -------- */

/* Reads the device's access to each place. False if the driver fails. */
static bool read_access(struct movables *all, const struct movable *movable)
{
	struct movable_place *place;

	for (CUdeviceptr at = movable->first; at; at = place->next) {
		place = map_find(&all->places, at);
		if (BEHIND(cuMemGetAccess)(&place->access, &movable->properties.location, at) !=
		    CUDA_SUCCESS)
			return false;
	}
	return true;
}

/* Returns an address at which the whole object can be copied; 0: none. */
static CUdeviceptr whole_place(struct movables *all, const struct movable *movable)
{
	const struct movable_place *place;

	for (CUdeviceptr at = movable->first; at; at = place->next) {
		place = map_find(&all->places, at);
		if (!place->offset && place->bytes == movable->bytes &&
		    place->access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return at;
	}
	return 0;
}

size_t movable_list(struct block_at *list, size_t room, uint64_t owner)
{
	STATE_LOCKED(all, movables);
	struct movable *movable = NULL;
	size_t count = 0;

	while ((movable = map_next(&all->known, movable))) {
		CUdeviceptr whole = 0;

		if (!movable->stays && read_access(all, movable))
			whole = whole_place(all, movable);
		if (whole && count < room)
			list[count] = (struct block_at){whole,
			                                {.bytes = movable->bytes,
			                                 .owner = owner,
			                                 .ordinal = movable->properties.location.id,
			                                 .uses = 1,
			                                 .serial = (uint32_t)map_key(movable)}};
		count += whole != 0;
	}
	return count;
}

static CUresult map_place(struct movables *all, const struct movable *movable, CUdeviceptr at)
{
	const struct movable_place *place = map_find(&all->places, at);
	CUmemAccessDesc access = {movable->properties.location, (int)place->access};
	CUresult result = BEHIND(cuMemMap)(at, place->bytes, place->offset, movable->driver, 0);

	if (result != CUDA_SUCCESS || !place->access)
		return result;
	result = BEHIND(cuMemSetAccess)(at, place->bytes, &access, 1);
	if (result != CUDA_SUCCESS)
		(void)BEHIND(cuMemUnmap)(at, place->bytes);
	return result;
}

/* Maps or unmaps the places before `end`. Returns the first that failed, or `end`. */
static CUdeviceptr change_places(struct movables *all, const struct movable *movable,
                                 CUdeviceptr end, bool mapped, CUresult *result)
{
	CUdeviceptr at = movable->first;

	for (; at != end; at = map_find(&all->places, at)->next) {
		*result = mapped ? map_place(all, movable, at)
		                 : BEHIND(cuMemUnmap)(at, map_find(&all->places, at)->bytes);
		if (*result != CUDA_SUCCESS)
			break;
	}
	return at;
}

static struct movable *listed(struct movables *all, CUdeviceptr pointer)
{
	return map_find(&all->known, map_find(&all->places, pointer)->number);
}

/* Unmapped everywhere, the memory is freed with its handle. */
static void free_memory(struct movable *movable)
{
	(void)BEHIND(cuMemRelease)(movable->driver);
	movable->driver = 0;
}

CUresult movable_bring(CUdeviceptr pointer)
{
	STATE_LOCKED(all, movables);
	struct movable *movable;
	CUresult result, ignored;
	CUdeviceptr end;

	movable = listed(all, pointer);
	result = BEHIND(cuMemCreate)(&movable->driver, movable->bytes, &movable->properties, 0);
	if (result != CUDA_SUCCESS) {
		movable->driver = 0;
	} else {
		end = change_places(all, movable, 0, true, &result);
		if (result != CUDA_SUCCESS) {
			(void)change_places(all, movable, end, false, &ignored);
			free_memory(movable);
		}
	}
	return result;
}

CUresult movable_take(CUdeviceptr pointer)
{
	STATE_LOCKED(all, movables);
	struct movable *movable;
	CUresult result = CUDA_SUCCESS, ignored;
	CUdeviceptr end;

	movable = listed(all, pointer);
	end = change_places(all, movable, 0, false, &result);
	if (result != CUDA_SUCCESS)
		(void)change_places(all, movable, end, true, &ignored);
	else
		free_memory(movable);
	return result;
}
