/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader's own functions. They are in libc since glibc 2.34, in libdl before; a program that
 * calls them has whichever it is. musl has no dlmopen and no dladdr1.
 */
#ifndef GPUSLICE_LOADER_H
#define GPUSLICE_LOADER_H

#include "elf_symbol.h"

#include <dlfcn.h>
#include <stddef.h>

#define LOADER_NAMESPACES 16 /* glibc's DL_NNS */

/* What the trampolines jump to: dlsym and dlvsym of the C library of each namespace. */
extern __attribute__((visibility("hidden"))) void *loader_dlsym[LOADER_NAMESPACES],
    *loader_dlvsym[LOADER_NAMESPACES], *loader_dlopen[2], *loader_dlmopen;

/* Look for the function of that name of the base namespace's C library. */
void *loader_find(void **kept, const char *name);

/* That, if it was not found yet. NULL if there is none. */
static inline void *loader_get(void **kept, const char *name)
{
	void *found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);

	return __builtin_expect(found != NULL, 1) ? found : loader_find(kept, name);
}

/* And with the type that the function has. */
#define LOADER(name)                                                                               \
	({                                                                                         \
		static void *kept_;                                                                \
		(__typeof__(&name))loader_get(&kept_, #name);                                      \
	})

/* Find what dlopen jumps to: the function that a program would find without us, a tool's that was
 * loaded behind us or the C library's; and the C library's, which the tool calls. */
void loader_find_dlopen(void);

/* The object is the loader itself. */
bool loader_is_loader(const struct elf_object *object);

/* What stands in for the C library's function of that name in a namespace, or NULL. */
void *loader_stand_in(const char *name, unsigned int namespace);
/* The same for one that a look-up found there: dlopen, too, which calls no tool's. */
void *loader_stand_in_of_libc(const char *name, unsigned int namespace);

/* Look the name up by the C library of a namespace. version may be NULL. */
void *loader_look_up(unsigned int namespace, void *handle, const char *name, const char *version);

#endif
