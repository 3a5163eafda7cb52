/* SPDX-License-Identifier: Apache-2.0 */
#include "function.h"

#include "hold.h"
#include "state.h"
#include "table.h"

enum { FUNCTION_LOCAL_BYTES = 3 }; /* CUfunction_attribute */

static uint32_t *care_of(struct functions *functions, const void *function)
{
	uint64_t hash = (map_key_of(function) >> 4) * 0x9e3779b97f4a7c15ull;

	return &functions->care[hash >> 52];
}

static_assert(FUNCTION_PLACES == 1 << (64 - 52), "the hash has a place");

/* Called with the lock held. Count the function as new, or no longer. */
static void set_new(struct functions *functions, const void *function, struct function *known,
                    bool is_new)
{
	if (known->is_new != is_new)
		__atomic_fetch_add(care_of(functions, function),
		                   is_new ? FUNCTION_NEW : -FUNCTION_NEW, __ATOMIC_RELAXED);
	known->is_new = is_new;
}

/* Called with the lock held. Never lowered: other functions may need the value. */
static void raise_care(struct functions *functions, const void *function, uint32_t units)
{
	uint32_t *care = care_of(functions, function);
	uint32_t now = __atomic_load_n(care, __ATOMIC_RELAXED);

	if (units >= FUNCTION_NEW)
		units = FUNCTION_NEW - 1;
	if (units > now % FUNCTION_NEW)
		__atomic_store_n(care, now - now % FUNCTION_NEW + units, __ATOMIC_RELAXED);
}

/* A library has an entry for each context it is loaded in. */
static uint64_t key_of_library(uint64_t library, uint64_t context)
{
	uint64_t hash = (library ^ context << 1) * 0x9e3779b97f4a7c15ull;

	return (hash ^ hash >> 29) | 1;
}

bool function_library_is_in(uint64_t context, uint64_t library)
{
	struct holding code;

	return hold_get(key_of_library(library, context), &code);
}

static bool is_everywhere(uint64_t library)
{
	return context_all(function_library_is_in, library);
}

void function_note(const void *function, uint64_t source, uint32_t frame, bool kernel)
{
	struct functions *functions;
	struct function *known;
	uint64_t context;

	if (!function || (frame <= STACK_DEFAULT && !kernel))
		return;
	context = kernel ? 0 : context_current();
	functions = STATE_TAKE(functions);
	known = map_put(&functions->known, map_key_of(function), NULL);
	if (known) {
		set_new(functions, function, known, kernel && !is_everywhere(source));
		known->frame = frame;
		known->source = source;
		known->kernel = kernel;
		known->context = context;
		raise_care(functions, function, stack_units(frame));
		if (frame > STACK_DEFAULT)
			__atomic_fetch_add(&functions->large, 1, __ATOMIC_RELAXED);
	}
	lock_give(&functions->lock);
}

void function_source_gone(uint64_t source)
{
	STATE_LOCKED(functions, functions);
	struct function *at = NULL;

	while ((at = map_next(&functions->known, at))) {
		if (at->source != source)
			continue;
		set_new(functions, (const void *)(uintptr_t)map_key(at), at, false);
		at = map_remove_at(&functions->known, at);
	}
}

/* Find which kernels of a library, or of all (0), are new. Contexts are read under the lock: a
 * context made during that is seen, or its thread calls this afterwards. */
static void look_again(uint64_t library)
{
	STATE_LOCKED(functions, functions);
	struct function *at = NULL;
	uint64_t source = 0;
	bool everywhere = false;

	while ((at = map_next(&functions->known, at))) {
		if (!at->kernel || (library && at->source != library))
			continue;
		if (at->source != source) {
			source = at->source;
			everywhere = is_everywhere(source);
		}
		set_new(functions, (const void *)(uintptr_t)map_key(at), at, !everywhere);
	}
}

void function_library_took(uint64_t library, CUdevice ordinal, uint64_t bytes)
{
	uint64_t context = context_current();

	(void)hold_add(key_of_library(library, context), &(struct holding){.bytes = bytes,
	                                                                   .owner = context,
	                                                                   .source = library,
	                                                                   .ordinal = ordinal,
	                                                                   .kind = KIND_OVERHEAD});
	look_again(library);
}

void function_contexts_changed(void)
{
	look_again(0);
}

bool function_find(const void *function, struct function *found)
{
	STATE_LOCKED(functions, functions);
	const struct function *known = map_find(&functions->known, map_key_of(function));

	*found = known ? *known : (struct function){0};
	return known;
}

uint32_t function_frame_of(CUfunction function, CUkernel kernel)
{
	CUdevice ordinal = process_current_ordinal();
	int frame = 0;

	if (function && DRIVER_HAS(cuFuncGetAttribute) &&
	    DRIVER(cuFuncGetAttribute)(&frame, FUNCTION_LOCAL_BYTES, function) == CUDA_SUCCESS)
		return (uint32_t)frame;
	if (!function && kernel && DRIVER_HAS(cuKernelGetAttribute) &&
	    DRIVER(cuKernelGetAttribute)(&frame, FUNCTION_LOCAL_BYTES, kernel,
	                                 ordinal < 0 ? 0 : ordinal) == CUDA_SUCCESS)
		return (uint32_t)frame;
	return 0;
}

bool function_any_large(void)
{
	return __atomic_load_n(&state.functions.large, __ATOMIC_RELAXED);
}

bool function_is_plain(const void *function)
{
	return __atomic_load_n(care_of(&state.functions, function), __ATOMIC_RELAXED) <=
	       __atomic_load_n(&state.contexts.raised, __ATOMIC_RELAXED);
}
