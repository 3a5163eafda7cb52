/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ELF_SYMBOL_H
#define GPUSLICE_ELF_SYMBOL_H

#include <link.h>

/*
 * Symbols of objects that are loaded already, read from the objects themselves. dlsym() will not
 * do: it is one of the functions that we stand in for, and asking it would need its address first.
 */

/* An object that the loader has mapped. Stays valid while it is not unloaded. */
struct elf_object {
	ElfW(Addr) base;
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash; /* one of the two is not NULL */
	const uint32_t *hash;
};

/*
 * Find the loaded object whose DT_SONAME is `soname`, or whose file's name if it has none, as
 * musl's libc. Returns 1 if there is one.
 */
int elf_find_object(const char *soname, struct elf_object *object);

/* The address of the function `name` that the object defines, or NULL. */
void *elf_find_symbol(const struct elf_object *object, const char *name);

#endif
