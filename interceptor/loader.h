/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader's own functions, in libc since glibc 2.34, in libdl before. musl has no dlmopen and no
 * dladdr1.
 */
#ifndef GPUSLICE_LOADER_H
#define GPUSLICE_LOADER_H

#include "elf_symbol.h"

#include <dlfcn.h>
#include <stddef.h>

#define LOADER_NAMESPACES 16 /* glibc's DL_NNS */

/* The targets of the trampolines, by namespace. */
extern __attribute__((visibility("hidden"))) void *loader_dlsym[LOADER_NAMESPACES],
    *loader_dlvsym[LOADER_NAMESPACES], *loader_dlopen[2], *loader_dlmopen;

void *loader_find(void **kept, const char *name);

/* Returns *kept, found at first use; NULL if there is none. */
static inline void *loader_get(void **kept, const char *name)
{
	void *found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);

	return __builtin_expect(found != NULL, 1) ? found : loader_find(kept, name);
}

#define LOADER(name)                                                                               \
	({                                                                                         \
		static void *kept_;                                                                \
		(__typeof__(&name))loader_get(&kept_, #name);                                      \
	})

/* Finds the targets of dlopen: a tool's loaded after us, or else the C library's; and the C
 * library's, which the tool calls. */
void loader_find_dlopen(void);

bool loader_is_loader(const struct elf_object *object);

/* Looks up by the namespace's C library. version may be NULL. */
void *loader_look_up(unsigned int namespace, void *handle, const char *name, const char *version);

#endif
