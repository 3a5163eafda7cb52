/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries that have the functions of table.h, and their hooks. */
#ifndef GPUSLICE_ENTRY_H
#define GPUSLICE_ENTRY_H

#include "elf_symbol.h"
#include "table.h"

/* A library with hooked functions. A process calls one of each: the one in the base namespace if it
 * is loaded there, else the first one found. All others are copies: a file of another name, or in
 * another namespace (dlmopen). Each of them would count the card as its own. */
struct library {
	const char *soname;
	enum entry_point first, last; /* its entries: [first, last) */
	void *absent;                 /* replaces missing functions */
	ElfW(Addr) base;              /* as it was when its entries were filled */
	uint32_t fills;               /* how often they were filled */
	void *handle; /* of scope_library(), which prevents an unload; NULL: it may be unloaded */
	/* A library of another namespace, if it came first. The fields below are valid when
	 * `adopted` is 2 (release; pairs with the acquire in library_find()). */
	uint32_t adopted;
	unsigned int namespace;
	struct elf_object object;
};

extern struct library library_cuda, library_nvml;

extern const char *const entry_name[ENTRY_POINTS];

/* Return the library that would export `name`, or NULL: cublas, cudnn, cuda… belong to others. */
static inline struct library *library_of(const char *name)
{
	if (name[0] == 'c' && name[1] == 'u' &&
	    ((name[2] >= 'A' && name[2] <= 'Z') ||
	     (name[2] == 'd' && name[3] == 'b' && name[4] == 'g')))
		return &library_cuda;
	if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')
		return &library_nvml;
	return NULL;
}

/* Fill the entries of a loaded library, again if it was unloaded and loaded. Return false if it is
 * not loaded; *object, if not NULL, is the object found. */
bool library_find(struct library *library, struct elf_object *object);

/* Use an object of another namespace, if there is no library yet. It must never be unloaded. */
void library_adopt(struct library *library, const struct elf_object *object,
                   unsigned int namespace);

/* Return what programs get for a function without a hook: its stub in an elastic slice, or
 * itself. */
void *library_gate(const struct library *library, const char *name, void *function);

#endif
