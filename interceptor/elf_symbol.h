/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ELF_SYMBOL_H
#define GPUSLICE_ELF_SYMBOL_H

#include <link.h>
#include <stdbool.h>

/*
 * Symbols of objects that are loaded already, read from the objects themselves. dlsym() will not
 * do: it is one of the functions that we stand in for, and asking it would need its address first.
 * The searches see the objects of the base namespace, in the order in which they were loaded.
 */

/* An object that the loader has mapped. Stays valid while it is not unloaded. */
struct elf_object {
	ElfW(Addr) base;
	ElfW(Addr) start, end; /* what of it is mapped lies in [start, end) */
	const ElfW(Sym) * symbols;
	const char *strings;
	const uint32_t *gnu_hash; /* one of the two is not NULL */
	const uint32_t *hash;
	const char *name; /* its DT_SONAME, or its file's name if it has none, as musl's libc */
	const char *path; /* of its file, as the loader knows it */
};

/* Read what an object's dynamic section and its program headers say. False if it has no symbols. */
bool elf_read_dynamic(const ElfW(Dyn) * dynamic, struct elf_object *object);
void elf_read_range(const ElfW(Phdr) * header, unsigned int count, struct elf_object *object);

/* An address in a dynamic section. The loader relocates these in place, but for the vDSO, whose
 * page it cannot write: an address below the base is still an offset. */
static inline ElfW(Addr) elf_address(const struct elf_object *object, ElfW(Addr) value)
{
	return value < object->base ? value + object->base : value;
}

static inline bool elf_contains(const struct elf_object *object, const void *address)
{
	return (ElfW(Addr))address >= object->start && (ElfW(Addr))address < object->end;
}

/* dl_iterate_phdr() of the C library, also where the program defines one. */
int elf_iterate(int (*visit)(struct dl_phdr_info *info, size_t size, void *data), void *data);

/* The C libraries, and the part of an old one that has dlsym. */
#define ELF_LIBC_NAMES 3
extern const char *const elf_libc_names[ELF_LIBC_NAMES];

bool elf_is_libc(const struct elf_object *object);

/* Find the first loaded object of that name. Returns 1 if there is one. */
int elf_find_object(const char *name, struct elf_object *object);

/* The like for the object that an address is in; */
int elf_find_containing(const void *address, struct elf_object *object);

/* and for the one that defines what is the next function `symbol` of the object that `address` is
 * in: the first behind it, or else, since one that is opened late has what it needs before it, the
 * first of all but us. */
int elf_find_next(const void *address, const char *symbol, struct elf_object *object);

/* The address of the function `name` that the object defines, or NULL. */
void *elf_find_symbol(const struct elf_object *object, const char *name);

#endif
