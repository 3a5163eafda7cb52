/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program gets at the driver's functions, and how ours take their place:
 *
 *   - linked with libcuda: our exported symbols come first, since we are preloaded;
 *   - dlsym and dlvsym on a handle, cuGetProcAddress in both forms: the real one is called, and if
 *     the pointer that it returns *is* a function we stand in for, ours is returned instead. So
 *     versions, flags and per-thread variants are right by construction.
 *
 * dlsym with RTLD_DEFAULT or RTLD_NEXT depends on who calls, and finds our exported symbols by
 * itself: like every other name, it is passed on by a jump (trampoline.S).
 */
#include "entry.h"
#include "process.h"
#include "say.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* Whether a hook is of the name that `name` is without its version: of cuMemAlloc_v2_ptsz,
 * cuMemAlloc. */
static bool other_version_is_hooked(const char *name)
{
	size_t length = strcspn(name, "_");

	return library_hook_of_stem(&library_cuda, name, length);
}

/*
 * A program was handed `found` under `name`, and no row of the table is it. If that is a version of
 * a hooked function that came with a newer driver, nothing but driver truth will count what it
 * takes: say so. `cuda` is the CUDA version that it was asked for by, as 13010; 0 if the name has
 * it.
 */
static void unknown_version(const char *name, const void *found, int cuda)
{
	struct process *process;
	struct elf_object object;

	if (!other_version_is_hooked(name))
		return;
	/* What dlsym() found may be another library's, which has its own functions of such names.
	 */
	if (!cuda &&
	    (!elf_find_object("libcuda.so.1", &object) || elf_find_symbol(&object, name) != found))
		return;
	process = process_get();
	if (process && cuda)
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s of CUDA %d.%d is newer than this gpuslice: driver truth alone counts "
		         "what it allocates",
		         name, cuda / 1000, cuda % 1000 / 10);
	else if (process)
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s is newer than this gpuslice: driver truth alone counts what it "
		         "allocates",
		         name);
}

/* The function to hand out in place of `found`; the rest as for unknown_version(). */
static void *exchange(struct library *library, void *found, const char *name, int cuda)
{
	bool known;
	void *hook;

	/* NULL stands for both "not found" and "this driver has no such function". */
	if (!found)
		return NULL;
	hook = library_hook(library, found, &known);
	if (!known && library == &library_cuda)
		unknown_version(name, found, cuda);
	return hook ? hook : found;
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

/* The C library's own, for the trampolines. In libc since glibc 2.34, in libdl before; a program
 * that calls them has whichever it is. */
__attribute__((visibility("hidden"))) void *libc_dlsym, *libc_dlvsym;

__attribute__((visibility("hidden"))) void *route_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) void *route_dlvsym(void *handle, const char *name,
                                                         const char *version);

/* musl's C library, which is its loader, too: `gpuslice run` is for any program. */
#if defined(__x86_64__)
#define MUSL "ld-musl-x86_64.so.1"
#elif defined(__aarch64__)
#define MUSL "ld-musl-aarch64.so.1"
#endif

static void *from_libc(void **kept, const char *name)
{
	static const char *const sonames[] = {"libc.so.6", "libdl.so.2", MUSL};
	void *found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);

	for (size_t i = 0; !found && i < sizeof(sonames) / sizeof(*sonames); i++) {
		struct elf_object object;

		if (elf_find_object(sonames[i], &object))
			found = elf_find_symbol(&object, name);
	}
	__atomic_store_n(kept, found, __ATOMIC_RELEASE);
	return found;
}

/* The library whose functions a look-up may lead to, if it is loaded. */
static struct library *wanted(void *handle, const char *name)
{
	struct library *library;

	if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || !name)
		return NULL;
	library = library_of(name);
	return library && library_find(library, NULL) ? library : NULL;
}

/*
 * Called by the trampolines in trampoline.S: what to return to the caller, or NULL if the real
 * function shall be jumped to. They need libc_dlsym or libc_dlvsym to be set.
 */
void *route_dlsym(void *handle, const char *name)
{
	void *(*real)(void *, const char *) = from_libc(&libc_dlsym, "dlsym");
	struct library *library = wanted(handle, name);

	if (!real || !library)
		return NULL;
	return exchange(library, real(handle, name), name, 0);
}

void *route_dlvsym(void *handle, const char *name, const char *version)
{
	void *(*real)(void *, const char *, const char *) = from_libc(&libc_dlvsym, "dlvsym");
	struct library *library = wanted(handle, name);

	if (!real || !library)
		return NULL;
	return exchange(library, real(handle, name, version), name, 0);
}
