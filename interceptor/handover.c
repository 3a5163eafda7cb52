/* SPDX-License-Identifier: Apache-2.0 */
#include "handover.h"

#include "grant.h"
#include "lender.h"
#include "quiet.h"
#include "recheck.h"
#include "state.h"
#include "stream.h"
#include "table.h"

bool handover_lends;

static struct handovers *handovers(void)
{
	return &state_get()->handovers;
}

/* --- exports ---------------------------------------------------------------------------------- */

static void export(CUmemGenericAllocationHandle handle, int descriptor, uint64_t name)
{
	struct handovers *h = handovers();
	QUIETLY;
	struct object *object;
	struct exported *export;

	recheck_begin();
	LOCKED(&h->lock);
	object = object_export(handle);
	export = object ? map_put(&h->exports, ++h->serial, NULL) : NULL;
	if (export)
		*export = (struct exported){
		    .object = object,
		    .name = name,
		    .watched = !name && fileset_put(&h->files, descriptor, h->serial)};
}

void handover_file(CUmemGenericAllocationHandle handle, int descriptor)
{
	lender_own_file(descriptor);
	export(handle, descriptor, 0);
}

void handover_name(CUmemGenericAllocationHandle handle, const void *name)
{
	lender_note(lender_name(name), LENDER_LENDS);
	export(handle, -1, lender_name(name));
}

void handover_lent(const void *name, const struct lent *lent)
{
	struct handovers *h = handovers();
	struct lent *known;

	recheck_begin();
	lender_note(lender_name(name), LENDER_LENDS);
	LOCKED(&h->lock);
	known = map_put(&h->lent, lender_name(name), NULL);
	if (known)
		*known = *lent;
	__atomic_store_n(&handover_lends, true, __ATOMIC_RELAXED);
}

/* Called with the lock held. Return whether other processes of the slice have it open. */
static bool is_open(uint64_t name)
{
	struct process *process = process_attached();

	return process && lender_who(process, name, LENDER_OPEN);
}

/* Called with the lock held. Keep `object` charged for the processes that have the name open. If it
 * is NULL, make one of `bytes`. An object that cannot be recorded stays charged. */
static struct object *keep(struct handovers *h, struct object *object, uint64_t name,
                           CUdevice ordinal, uint64_t bytes)
{
	struct exported *export;

	object = object_keep(object, ordinal, bytes);
	export = object ? map_put(&h->exports, ++h->serial, NULL) : NULL;
	if (export)
		*export = (struct exported){.object = object, .name = name};
	objects_set_waiting();
	return object;
}

uint64_t handover_kept_at(CUdeviceptr address, uint64_t bytes, CUdevice ordinal)
{
	struct handovers *h = handovers();
	QUIETLY;
	struct object *object = NULL;
	struct lent *at = NULL;
	uint64_t kept = 0;

	LOCKED(&h->lock);
	while ((at = map_next(&h->lent, at))) {
		if (at->of_pool || at->address - address >= bytes)
			continue;
		if (is_open(map_key(at))) {
			object = keep(h, object, map_key(at), ordinal, bytes);
			kept = bytes;
		}
		at = map_remove_at(&h->lent, at);
	}
	return kept;
}

static bool is_allocated(CUdeviceptr address)
{
	CUdeviceptr start = 0;
	size_t bytes;

	STREAM_CAPTURE_RELAXED;
	return DRIVER_HAS(cuMemGetAddressRange_v2) &&
	       DRIVER(cuMemGetAddressRange_v2)(&start, &bytes, address) == CUDA_SUCCESS &&
	       start == address;
}

uint64_t handover_kept_of_pools(uint64_t bytes, CUdevice ordinal)
{
	struct handovers *h = handovers();
	struct lent *at = NULL;
	uint64_t kept = 0, part;

	if (!__atomic_load_n(&handover_lends, __ATOMIC_RELAXED))
		return 0;
	QUIETLY;
	LOCKED(&h->lock);
	while (kept < bytes && (at = map_next(&h->lent, at))) {
		if (!at->of_pool || at->ordinal != ordinal || is_allocated(at->address))
			continue;
		if (is_open(map_key(at))) {
			part = bytes - kept < at->of_pool ? bytes - kept : at->of_pool;
			(void)keep(h, NULL, map_key(at), ordinal, part);
			kept += part;
		}
		at = map_remove_at(&h->lent, at);
	}
	return kept;
}

static void see(void *data, uint64_t serial)
{
	struct handovers *h = data;
	struct exported *export = map_find(&h->exports, serial);

	if (export)
		export->look = h->look;
}

void handover_look_now(void)
{
	struct handovers *h = handovers();
	QUIETLY;
	struct exported *at = NULL;
	bool known, again = false;

	LOCKED(&h->lock);
	/* Clear it before the check, so that a release during the check sets it again. */
	__atomic_store_n(&objects_waiting, false, __ATOMIC_SEQ_CST);
	h->look++;
	known = fileset_look(&h->files, see, h);
	while ((at = map_next(&h->exports, at))) {
		struct object *object = at->object;
		bool waits = object_waits(object);

		/* Others can open memory by its name while this process has it. */
		if (at->name ? !waits || is_open(at->name)
		             : !known || !at->watched || at->look == h->look) {
			again |= waits;
			continue;
		}
		at = map_remove_at(&h->exports, at);
		object_unexport(object);
	}
	if (again)
		objects_set_waiting();
}

static bool recheck(void)
{
	handover_look();
	return __atomic_load_n(&objects_waiting, __ATOMIC_SEQ_CST);
}
UPCALL(recheck, recheck);

static bool make_room(CUdevice ordinal)
{
	(void)ordinal;
	handover_look();
	return false;
}
UPCALL(grant_room, make_room);
