/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include "state.h"
#include "table.h"

uint64_t context_owner(CUcontext context)
{
	struct context known;

	if (__atomic_load_n(&state.contexts.green, __ATOMIC_RELAXED) &&
	    context_get((uint64_t)(uintptr_t)context, &known) && known.primary)
		return known.primary;
	return (uint64_t)(uintptr_t)context;
}

uint64_t context_current(void)
{
	CUcontext current = NULL;

	if (!DRIVER_HAS(cuCtxGetCurrent) || DRIVER(cuCtxGetCurrent)(&current) != CUDA_SUCCESS)
		return 0;
	return context_owner(current);
}

/* Called with the lock held. A stack that was not read yet has the default. */
static void find_least_stack(struct contexts *contexts)
{
	uint32_t least = UINT32_MAX;
	struct context *at = NULL;

	while ((at = map_next(&contexts->known, at))) {
		if (!at->primary && stack_units(at->stack) < least)
			least = stack_units(at->stack);
	}
	__atomic_store_n(&contexts->raised, least == UINT32_MAX ? 0 : least, __ATOMIC_RELAXED);
}

void context_note(uint64_t handle, const struct context *context)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = map_put(&contexts->known, handle, NULL);

	if (known)
		*known = *context;
	if (context->primary)
		__atomic_store_n(&contexts->green, true, __ATOMIC_RELAXED);
	find_least_stack(contexts);
}

bool context_any(CUdevice ordinal)
{
	STATE_LOCKED(contexts, contexts);
	struct context *at = NULL;
	bool any = false;

	while (!any && (at = map_next(&contexts->known, at)))
		any = at->ordinal == ordinal;
	return any;
}

bool context_all(bool (*has)(uint64_t handle, uint64_t argument), uint64_t argument)
{
	STATE_LOCKED(contexts, contexts);
	struct context *at = NULL;
	bool any = false, all = true;

	while (all && (at = map_next(&contexts->known, at))) {
		if (at->primary)
			continue;
		any = true;
		all = has(map_key(at), argument);
	}
	return any && all;
}

size_t context_list(uint64_t *handles, size_t room)
{
	STATE_LOCKED(contexts, contexts);
	struct context *at = NULL;
	size_t count = 0;

	while ((at = map_next(&contexts->known, at))) {
		if (at->primary)
			continue;
		if (count < room)
			handles[count] = map_key(at);
		count++;
	}
	return count;
}

static bool look(uint64_t handle, struct context *context, bool take)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = map_find(&contexts->known, handle);

	*context = (struct context){0};
	if (known) {
		*context = *known;
		if (take) {
			map_remove(&contexts->known, known);
			find_least_stack(contexts);
		}
	}
	return known;
}

bool context_get(uint64_t handle, struct context *context)
{
	return look(handle, context, false);
}

bool context_take(uint64_t handle, struct context *context)
{
	return look(handle, context, true);
}

/* Called with the lock held. Return the context, noted if it was unknown. */
static struct context *known_of(struct contexts *contexts, uint64_t handle, CUdevice ordinal)
{
	bool fresh = false;
	struct context *known = map_put(&contexts->known, handle, &fresh);

	if (fresh)
		known->ordinal = ordinal;
	return known;
}

uint64_t context_set_heap(uint64_t handle, CUdevice ordinal, uint64_t bytes)
{
	STATE_LOCKED(contexts, contexts);
	uint64_t before = 0;
	struct context *known = known_of(contexts, handle, ordinal);

	if (known) {
		before = known->heap;
		known->heap = bytes;
	}
	return before;
}

struct streams context_add_stream(uint64_t handle, CUdevice ordinal)
{
	STATE_LOCKED(contexts, contexts);
	struct streams streams = {0};
	struct context *known = known_of(contexts, handle, ordinal);

	if (known) {
		streams.before = known->most_streams;
		if (++known->streams > known->most_streams)
			known->most_streams = known->streams;
		streams.after = known->most_streams;
	}
	return streams;
}

void context_drop_stream(uint64_t handle, bool charged)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = map_find(&contexts->known, handle);

	if (known && known->streams)
		known->streams--;
	if (known && !charged && known->most_streams > known->streams)
		known->most_streams--;
}

void context_set_stack(uint64_t handle, CUdevice ordinal, uint32_t stack)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = known_of(contexts, handle, ordinal);

	if (known && known->stack != stack) {
		known->stack = stack;
		find_least_stack(contexts);
	}
}

void context_raise_begin(uint64_t handle, CUdevice ordinal, uint64_t more)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = known_of(contexts, handle, ordinal);

	if (known) {
		known->raises++;
		known->stack_bytes += more;
	}
}

bool context_raise_end(uint64_t handle, uint32_t stack, uint64_t bytes, uint64_t *before,
                       uint64_t *after)
{
	STATE_LOCKED(contexts, contexts);
	struct context *known = map_find(&contexts->known, handle);

	if (known) {
		if (known->raises)
			known->raises--;
		*before = known->stack_bytes;
		*after = known->raises && bytes < *before ? *before : bytes;
		known->stack_bytes = *after;
		known->stack = stack;
		find_least_stack(contexts);
	}
	return known;
}

bool context_push(CUcontext other)
{
	CUcontext current = NULL;

	return other && DRIVER(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != other &&
	       DRIVER(cuCtxPushCurrent_v2)(other) == CUDA_SUCCESS;
}

void context_pop(const bool *pushed)
{
	CUcontext context;

	if (*pushed)
		(void)DRIVER(cuCtxPopCurrent_v2)(&context);
}

CUresult context_enter(uint64_t owner)
{
	/* The lowest bit is set while the context ends (leaving.c). */
	return BEHIND(cuCtxPushCurrent_v2)((CUcontext)(uintptr_t)(owner & ~1ull));
}

void context_leave(void)
{
	CUcontext context;

	(void)BEHIND(cuCtxPopCurrent_v2)(&context);
}

CUresult context_wait(uint64_t owner)
{
	CUresult result = context_enter(owner);

	if (result != CUDA_SUCCESS)
		return result;
	result = BEHIND(cuCtxSynchronize)();
	context_leave();
	return result;
}

bool context_primary_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return DRIVER_HAS(cuDevicePrimaryCtxGetState) &&
	       DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS &&
	       active;
}

struct primary *context_primary(CUdevice device)
{
	return device >= 0 && device < PROCESS_ORDINALS ? &state_get()->contexts.primary[device]
	                                                : NULL;
}
