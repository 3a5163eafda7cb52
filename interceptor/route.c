/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Redirects the ways in which a program gets the driver's functions:
 *
 *   - linking with libcuda: our symbols come first, since we are preloaded;
 *   - dlsym, dlvsym, both forms of cuGetProcAddress: a pointer to a hooked function in the real
 *     result is replaced by the hook. Versions, flags and per-thread variants need no rules;
 *   - dlsym looked up by dlsym: ours;
 *   - another copy of the driver: its functions are replaced by the one driver's (entry.h);
 *   - in an elastic slice, a function without a hook: its stub (gate.h);
 *   - objects that bypass our symbols: scope.h.
 *
 * With RTLD_DEFAULT and RTLD_NEXT the result depends on the caller. Names outside the driver are
 * passed on by a jump (route.S), which keeps the caller; for the driver's, this module finds
 * the object that the look-up would use.
 */
#include "answer.h"
#include "loader.h"
#include "process.h"
#include "scope.h"
#include "text.h"

#include <stddef.h>
#include <string.h>

#define JUMP NULL                  /* jump to the real function */
#define ROUTE_NOTHING ((void *)-1) /* return NULL; route.S knows this value */

/* Of route.S, for each namespace. */
extern __attribute__((visibility("hidden"))) void *const trampoline_dlsym[LOADER_NAMESPACES],
    *const trampoline_dlvsym[LOADER_NAMESPACES];
extern __attribute__((visibility("hidden"))) void *dlopen_of_libc(const char *file, int mode);

/* Returns our replacement of the C library's function in a namespace, or NULL. */
static void *stand_in_for(const char *name, unsigned int namespace)
{
	if (name[0] != 'd' || name[1] != 'l')
		return NULL;
	if (text_equal(name, "dlsym"))
		return trampoline_dlsym[namespace];
	if (text_equal(name, "dlvsym"))
		return trampoline_dlvsym[namespace];
	/* dlmopen only records that there are other namespaces. */
	return namespace == 0 && text_equal(name, "dlmopen") ? (void *)dlmopen : NULL;
}

/* The same for one that a look-up found: also dlopen, which then calls no tool's. */
static void *stand_in_of_libc(const char *name, unsigned int namespace)
{
	return namespace == 0 && text_equal(name, "dlopen") ? (void *)dlopen_of_libc
	                                                    : stand_in_for(name, namespace);
}

static void begin(void)
{
	scope_hold_for_gate(stand_in_for);
}
UPCALL(process_begun, begin);

struct lookup {
	void *handle;
	const char *name, *version; /* NULL for dlsym */
	unsigned int namespace;     /* the caller's */
	const void *caller;         /* the return address */
};

static void *look_up(const struct lookup *lookup, void *handle)
{
	return loader_look_up(lookup->namespace, handle, lookup->name, lookup->version);
}

/* Looks the name up in the process's one driver, after it was found in a copy. */
static void *find_in_own_driver(const struct lookup *lookup, struct library *library,
                                const struct elf_object *copy, unsigned int namespace)
{
	void *handle, *found;

	if (namespace && !library_find(library, NULL)) {
		library_adopt(library, copy, namespace);
		scope_see(SCOPE_BASE);
	}
	scope_use_library(library, namespace);
	handle = scope_library(library);
	found = handle ? look_up(lookup, handle) : NULL;
	return found ? answer(library, found, lookup->name, 0) : ROUTE_NOTHING;
}

/* Returns the result for a found symbol with the library's prefix. */
static void *result_of(const struct lookup *lookup, struct library *library, void *found)
{
	struct elf_object object;
	unsigned int namespace;

	if (library_find(library, &object) && elf_contains(&object, found))
		return answer(library, found, lookup->name, 0);
	if (!scope_find(found, &object, &namespace) || !text_equal(object.name, library->soname))
		return found;
	return find_in_own_driver(lookup, library, &object, namespace);
}

/* For RTLD_NEXT, and RTLD_DEFAULT in another namespace: finds the object that the caller's look-up
 * would use. */
static void *result_by_caller(const struct lookup *lookup, struct library *library)
{
	bool next = lookup->handle == RTLD_NEXT;
	struct elf_object object;
	void *stand_in;

	if (lookup->namespace ? !scope_find_definer(lookup->caller, next, lookup->name, &object)
	                      : !elf_find_next(lookup->caller, lookup->name, &object))
		return JUMP;
	/* A look-up with a version skips our functions, which have none. */
	if (!library)
		stand_in = elf_is_libc(&object) || elf_contains(&object, &scope_seen)
		               ? stand_in_of_libc(lookup->name, lookup->namespace)
		               : NULL;
	else if (text_equal(object.name, library->soname))
		stand_in = find_in_own_driver(lookup, library, &object, lookup->namespace);
	else
		return JUMP;
	return stand_in ? stand_in : JUMP;
}

/* Reports whether the name is a library's, or may be the loader's. */
static inline bool may_be_hooked(const char *name)
{
	return name && (library_of(name) || (name[0] == 'd' && name[1] == 'l'));
}

/* Reports whether objects must be rewritten first (scope.h). */
static inline bool must_rewrite(const void *handle)
{
	return __builtin_expect(__atomic_load_n(&scope_seen, __ATOMIC_RELAXED) != 0, 0) &&
	       handle != RTLD_DEFAULT && handle != RTLD_NEXT;
}

/* Reports whether the caller is in the driver. A driver may load the driver, as WSL's does: its
 * look-ups serve our calls. */
static bool is_of_driver(const void *caller)
{
	struct elf_object object;

	return elf_find_containing(caller, &object) &&
	       (text_equal(object.name, library_cuda.soname) ||
	        text_begins(object.name, "libcuda_") || text_begins(object.name, "libnvidia-"));
}

static void *route(const struct lookup *lookup)
{
	bool by_handle = lookup->handle != RTLD_DEFAULT && lookup->handle != RTLD_NEXT;
	struct library *library;
	struct elf_object object;
	unsigned int namespace = lookup->namespace;
	void *stand_in, *found;

	if (must_rewrite(lookup->handle))
	namespace = scope_hold(lookup->handle, stand_in_for);
	if (!may_be_hooked(lookup->name))
		return JUMP;
	library = library_of(lookup->name);
	if (library && is_of_driver(lookup->caller))
		return JUMP;
	stand_in = library ? NULL : stand_in_of_libc(lookup->name, namespace);
	if (!library && !stand_in)
		return JUMP;
	if (lookup->handle == RTLD_NEXT || (!by_handle && lookup->namespace))
		return result_by_caller(lookup, library);
	/* The base's global symbols are found from here too. If not, the caller may find more. */
	found = look_up(lookup, lookup->handle);
	if (!found)
		return by_handle ? ROUTE_NOTHING : JUMP;
	if (library)
		return result_of(lookup, library, found);
	return scope_find(found, &object, &namespace) && elf_is_libc(&object)
	           ? stand_in_of_libc(lookup->name, namespace)
	           : found;
}

/* Called by the trampolines: return the result, JUMP or ROUTE_NOTHING. A jump needs loader_dlsym
 * and its siblings to be set. */
__attribute__((visibility("hidden"))) void *route_dlsym(void *handle, const char *name,
                                                        const void *nothing, unsigned int namespace,
                                                        const void *caller);
__attribute__((visibility("hidden"))) void *route_dlvsym(void *handle, const char *name,
                                                         const char *version,
                                                         unsigned int namespace,
                                                         const void *caller);
__attribute__((visibility("hidden"))) void *route_dlopen(const char *file, int mode);
__attribute__((visibility("hidden"))) void *route_dlmopen(Lmid_t namespace, const char *file,
                                                          int mode);

void *route_dlsym(void *handle, const char *name, const void *nothing, unsigned int namespace,
                  const void *caller)
{
	struct lookup lookup = {handle, name, NULL, namespace, caller};

	(void)nothing;
	if (!loader_get(&loader_dlsym[namespace], "dlsym") ||
	    (!may_be_hooked(name) && !must_rewrite(handle)))
		return JUMP;
	return route(&lookup);
}

void *route_dlvsym(void *handle, const char *name, const char *version, unsigned int namespace,
                   const void *caller)
{
	struct lookup lookup = {handle, name, version, namespace, caller};

	if (!loader_get(&loader_dlvsym[namespace], "dlvsym") || !version)
		return JUMP;
	return route(&lookup);
}

void *route_dlopen(const char *file, int mode)
{
	(void)file;
	if (mode & RTLD_DEEPBIND)
		scope_see(SCOPE_BASE);
	(void)loader_find_dlopen();
	return JUMP;
}

void *route_dlmopen(Lmid_t namespace, const char *file, int mode)
{
	scope_see(SCOPE_NAMESPACE);
	(void)namespace;
	(void)route_dlopen(file, mode);
	(void)loader_get(&loader_dlmopen, "dlmopen");
	return JUMP;
}
