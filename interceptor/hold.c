/* SPDX-License-Identifier: Apache-2.0 */
#include "hold.h"

#include "context.h"
#include "grant.h"
#include "state.h"

void hold(uint64_t key, const struct holding *holding)
{
	STATE_LOCKED(holds, holds);
	struct holding *held = map_put(&holds->by_key, key, NULL);

	holds->any_source |= holding->source != 0;
	if (held)
		*held = *holding;
}

bool hold_add(uint64_t key, const struct holding *more)
{
	STATE_LOCKED(holds, holds);
	bool fresh = false;
	struct holding *held = map_put(&holds->by_key, key, &fresh);

	holds->any_source |= more->source != 0;
	if (fresh) {
		*held = *more;
	} else if (held) {
		held->bytes += more->bytes;
		held->opens += more->opens;
	}
	return fresh || !held;
}

bool hold_get(uint64_t key, struct holding *holding)
{
	STATE_LOCKED(holds, holds);
	const struct holding *held = map_find(&holds->by_key, key);

	*holding = held ? *held : (struct holding){0};
	return held;
}

uint64_t hold_count_sharing(CUdevice ordinal)
{
	STATE_LOCKED(holds, holds);
	struct holding *at = NULL;
	uint64_t count = 0;

	while ((at = map_next(&holds->by_key, at)))
		count += at->ordinal == ordinal && at->kind == KIND_OVERHEAD && !at->bytes;
	return count;
}

CUresult hold_or_release(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes,
                         enum kind kind)
{
	if (result != CUDA_SUCCESS) {
		process_release(ordinal, bytes, kind);
		return result;
	}
	hold(key,
	     &(struct holding){
	         .bytes = bytes, .owner = context_current(), .ordinal = ordinal, .kind = kind});
	grant_count(ordinal);
	return result;
}

/* Count one use less. The last use, or `whole`, removes the holding. */
static bool take_out(uint64_t key, struct holding *holding, bool whole)
{
	STATE_LOCKED(holds, holds);
	struct holding *held = map_find(&holds->by_key, key);

	if (held) {
		*holding = *held;
		if (held->opens > 1 && !whole)
			held->opens--;
		else
			map_remove(&holds->by_key, held);
	}
	return held;
}

bool unhold(uint64_t key, struct holding *holding)
{
	return take_out(key, holding, true);
}

CUresult release_or_hold(CUresult result, uint64_t key, const struct holding *holding)
{
	if (result == CUDA_SUCCESS) {
		process_release(holding->ordinal, holding->bytes, holding->kind);
		import_end(holding->import);
	} else {
		hold(key, holding);
	}
	return result;
}

struct import *hold_import(uint64_t key)
{
	STATE_LOCKED(holds, holds);
	const struct holding *held = map_find(&holds->by_key, key);
	struct import *import = held ? held->import : NULL;

	if (import)
		import_refer(import);
	return import;
}

bool hold_open(uint64_t key)
{
	STATE_LOCKED(holds, holds);
	struct holding *held = map_find(&holds->by_key, key);

	if (held)
		held->opens++;
	return held;
}

bool hold_close(uint64_t key, struct holding *holding)
{
	return take_out(key, holding, false);
}

/* Release all holdings of an owner or of a source; 0 is none. */
static void give_back(uint64_t owner, uint64_t source)
{
	uint64_t bytes[PROCESS_ORDINALS][KIND_OVERHEAD + 1] = {0};
	struct holds *holds = STATE_TAKE(holds);
	struct holding *at = NULL;

	while ((at = map_next(&holds->by_key, at))) {
		if ((!owner || at->owner != owner) && (!source || at->source != source))
			continue;
		bytes[at->ordinal][at->kind] += at->bytes;
		import_end(at->import);
		at = map_remove_at(&holds->by_key, at);
	}
	lock_give(&holds->lock);
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++) {
		for (enum kind kind = KIND_MEMORY; kind <= KIND_OVERHEAD; kind++) {
			if (bytes[ordinal][kind])
				process_release(ordinal, bytes[ordinal][kind], kind);
		}
	}
}

/* Return a source that no holding has: handles are even. */
static uint64_t apart(uint64_t source)
{
	return source | 1;
}

static void set_source(uint64_t from, uint64_t to)
{
	STATE_LOCKED(holds, holds);
	struct holding *at = NULL;

	while (holds->any_source && (at = map_next(&holds->by_key, at))) {
		if (at->source == from)
			at->source = to;
	}
}

void hold_source_leave(uint64_t source)
{
	if (source)
		set_source(source, apart(source));
}

CUresult hold_source_left(CUresult result, uint64_t source)
{
	if (source && result != CUDA_SUCCESS)
		set_source(apart(source), source);
	else if (source && state_get()->holds.any_source)
		give_back(0, apart(source));
	return result;
}

void hold_owner_gone(uint64_t owner)
{
	give_back(owner, 0);
}

void hold_set_owner(uint64_t from, uint64_t to)
{
	STATE_LOCKED(holds, holds);
	struct holding *at = NULL;

	while ((at = map_next(&holds->by_key, at))) {
		if (at->owner == from)
			at->owner = to;
	}
}
