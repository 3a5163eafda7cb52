/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program gets at the driver's functions, and how ours take their place:
 *
 *   - linked with libcuda: our exported symbols come first, since we are preloaded;
 *   - dlsym and dlvsym, cuGetProcAddress in both forms: the real one is called, and if the pointer
 *     that it returns *is* a function we stand in for, ours is returned instead. So versions, flags
 *     and per-thread variants are right by construction;
 *   - dlsym itself, by dlsym: ours again;
 *   - another copy of the driver: what is found there is exchanged for the one's (entry.h);
 *   - in an elastic slice, a function that we do not stand in for: its stub (gate.h);
 *   - objects that we do not come before: scope.h.
 *
 * dlsym with RTLD_DEFAULT or RTLD_NEXT depends on who calls. Names that are not the driver's are
 * passed on by a jump (trampoline.S), like every other; for the driver's it is found out where the
 * look-up would lead.
 */
#include "entry.h"
#include "gate.h"
#include "listed.h"
#include "loader.h"
#include "process.h"
#include "say.h"
#include "scope.h"
#include "text.h"

#include <stddef.h>
#include <string.h>

#define JUMP NULL                  /* the caller gets what the real function returns */
#define ROUTE_NOTHING ((void *)-1) /* the caller gets NULL, as trampoline.S knows */

/* Whether a hook is of the name that `name` is without its version: of cuMemAlloc_v2_ptsz,
 * cuMemAlloc. */
static bool other_version_is_hooked(const char *name)
{
	size_t length = strcspn(name, "_");

	return library_hook_of_stem(&library_cuda, name, length);
}

/* True of the name of a function that only reads: neither memory nor code, which the driver may
 * load for the answer. */
static bool only_tells(const char *name)
{
	static const char *const others[] = {"Mem", "Library", "Module", "Function"};
	const char *verb = strstr(name, "Get");

	if (!verb || verb == name + 2)
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		if (strstr(name, others[i]))
			return false;
	}
	return true;
}

/*
 * A program was handed a function under `name` of which no row of the table is: nothing but driver
 * truth will count what it takes, if it takes anything. Say so. `cuda` is the CUDA version that it
 * was asked for by, as 13010; 0 if the name has it.
 */
static void unknown(const char *name, int cuda)
{
	struct process *process;

	if (listed(name, cuda != 0) || only_tells(name))
		return;
	process = process_get();
	if (!other_version_is_hooked(name))
		say_once(
		    process, ONCE_UNLISTED,
		    "%s is not known to this gpuslice: driver truth alone counts what it allocates",
		    name);
	else if (cuda)
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s of CUDA %d.%d is newer than this gpuslice: driver truth alone counts "
		         "what it allocates",
		         name, cuda / 1000, cuda % 1000 / 10);
	else
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s is newer than this gpuslice: driver truth alone counts what it "
		         "allocates",
		         name);
}

/* The function to hand out in place of one of the library's; the rest as for unknown(). */
static void *exchange(struct library *library, void *found, const char *name, int cuda)
{
	struct elf_object object;
	bool known;
	void *hook = library_hook(library, found, &known);

	if (!known && library == &library_cuda)
		unknown(name, cuda);
	if (hook || !gate_is_elastic())
		return hook ? hook : found;
	/* What dlsym found may be no function. */
	if (!cuda && !(library_find(library, &object) && elf_find_symbol(&object, name)))
		return found;
	return library_gate(library, name, found);
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	CUresult result = DRIVER(cuGetProcAddress)(name, function, version, flags);

	if (result == CUDA_SUCCESS && function && *function)
		*function = exchange(&library_cuda, *function, name, version);
	return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *status)
{
	CUresult result = DRIVER(cuGetProcAddress_v2)(name, function, version, flags, status);

	if (result == CUDA_SUCCESS && function && *function)
		*function = exchange(&library_cuda, *function, name, version);
	return result;
}

/* A look-up by dlsym or dlvsym. */
struct lookup {
	void *handle;
	const char *name, *version; /* NULL: by dlsym */
	unsigned int namespace;     /* the caller's */
	const void *caller;         /* where it goes on */
};

static void *look_up(const struct lookup *lookup, void *handle)
{
	return loader_look_up(lookup->namespace, handle, lookup->name, lookup->version);
}

/* The name in the one driver of this process, when it was found in a copy. */
static void *of_the_one(const struct lookup *lookup, struct library *library,
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
	return found ? exchange(library, found, lookup->name, 0) : ROUTE_NOTHING;
}

/* What was found for a name that is the library's, or another's of that prefix. */
static void *answer(const struct lookup *lookup, struct library *library, void *found)
{
	struct elf_object object;
	unsigned int namespace;

	if (library_find(library, &object) && elf_contains(&object, found))
		return exchange(library, found, lookup->name, 0);
	if (!scope_find(found, &object, &namespace) || !text_equal(object.name, library->soname))
		return found;
	return of_the_one(lookup, library, &object, namespace);
}

/* For the caller's next, and for what is common to a namespace that is not ours, the caller's
 * return address counts: see whose the function would be. */
static void *answer_by_caller(const struct lookup *lookup, struct library *library)
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
		               ? loader_stand_in_of_libc(lookup->name, lookup->namespace)
		               : NULL;
	else if (text_equal(object.name, library->soname))
		stand_in = of_the_one(lookup, library, &object, lookup->namespace);
	else
		return JUMP;
	return stand_in ? stand_in : JUMP;
}

/* Whether a name is not passed on at once: a library's, or one of the loader's. */
static inline bool may_matter(const char *name)
{
	return name && (library_of(name) || (name[0] == 'd' && name[1] == 'l'));
}

/* Whether there are objects that must be held before anybody has a function of theirs. */
static inline bool must_hold(const void *handle)
{
	return __builtin_expect(__atomic_load_n(&scope_seen, __ATOMIC_RELAXED) != 0, 0) &&
	       handle != RTLD_DEFAULT && handle != RTLD_NEXT;
}

/* A driver may be a loader of the driver, as WSL's is: what its objects look up is what they call
 * for us. */
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
	unsigned int namespace = lookup->namespace;
	void *stand_in, *found;

	if (must_hold(lookup->handle))
	namespace = scope_hold(lookup->handle);
	if (!may_matter(lookup->name))
		return JUMP;
	library = library_of(lookup->name);
	if (library && is_of_driver(lookup->caller))
		return JUMP;
	stand_in = library ? NULL : loader_stand_in_of_libc(lookup->name, namespace);
	if (!library && !stand_in)
		return JUMP;
	if (lookup->handle == RTLD_NEXT || (!by_handle && lookup->namespace))
		return answer_by_caller(lookup, library);
	/* What is common to all of the base is found from here, too; if not, the caller may know
	 * more. */
	found = look_up(lookup, lookup->handle);
	if (!found)
		return by_handle ? ROUTE_NOTHING : JUMP;
	if (library)
		return answer(lookup, library, found);
	{
		struct elf_object object;

		return scope_find(found, &object, &namespace) && elf_is_libc(&object)
		           ? loader_stand_in_of_libc(lookup->name, namespace)
		           : found;
	}
}

/* Called by the trampolines: what to return to the caller, JUMP or ROUTE_NOTHING. To jump to the
 * real function they need loader_dlsym and the like to be set. */
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
	    (!may_matter(name) && !must_hold(handle)))
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
