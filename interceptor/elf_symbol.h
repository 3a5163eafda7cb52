/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ELF_SYMBOL_H
#define GPUSLICE_ELF_SYMBOL_H

#include <link.h>
#include <stdbool.h>

/* Finds symbols of loaded objects by reading the objects themselves. dlsym() would not do: the
 * interceptor replaces it, and would need its address first. Searches cover the objects of the base
 * namespace, in the order in which they were loaded. */

/* A loaded object. Valid until it is unloaded. */
struct elf_object {
	ElfW(Addr) base;
	ElfW(Addr) start, end; /* its mappings lie in [start, end) */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash; /* one of these two is not NULL */
	const uint32_t *hash;
	const char *name; /* DT_SONAME, or the file's name if it has none, as musl's libc */
	const char *path; /* the file's, as the loader knows it */
};

/* Read an object's dynamic section, or its program headers. False if it has no symbols. */
bool elf_read_dynamic(const ElfW(Dyn) * dynamic, struct elf_object *object);
void elf_read_range(const ElfW(Phdr) * header, unsigned int count, struct elf_object *object);

/* Return an address of a dynamic section. The loader relocates these in place, except in the vDSO,
 * which it cannot write: there they are offsets, below the base. */
static inline ElfW(Addr) elf_address(const struct elf_object *object, ElfW(Addr) value)
{
	return value < object->base ? value + object->base : value;
}

static inline bool elf_contains(const struct elf_object *object, const void *address)
{
	return (ElfW(Addr))address >= object->start && (ElfW(Addr))address < object->end;
}

/* Call the C library's dl_iterate_phdr(), even if the program defines one. */
int elf_iterate(int (*visit)(struct dl_phdr_info *info, size_t size, void *data), void *data);

/* Return whether it is a C library, or one of the parts of an old one that have dlsym and threads.
 */
bool elf_is_libc(const struct elf_object *object);

/* Find the first loaded object of that name. Returns 1 if there is one. */
int elf_find_object(const char *name, struct elf_object *object);

/* Find the object that contains an address. */
int elf_find_containing(const void *address, struct elf_object *object);

/* Find the object with the next function `symbol` after the object that contains `address`. If none
 * comes after it, find the first of all but this library: an object that is opened late has its
 * dependencies before it. */
int elf_find_next(const void *address, const char *symbol, struct elf_object *object);

/* Return NULL if the object does not define the function. */
void *elf_find_symbol(const struct elf_object *object, const char *name);

/* The same of the C library. */
void *elf_find_in_libc(const char *name);

#endif
