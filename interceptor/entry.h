/* SPDX-License-Identifier: Apache-2.0 */
/* Where the functions of table.h are: in which library, and which hook takes a function's place. */
#ifndef GPUSLICE_ENTRY_H
#define GPUSLICE_ENTRY_H

#include "elf_symbol.h"
#include "table.h"

/*
 * One of the libraries whose functions are hooked. A process has one of each, whose functions all
 * of it calls: the first that was met, which is that of the base namespace if it is loaded there.
 * Others are copies: a file of another name, or one in another namespace (dlmopen). Each would
 * count the card as its own.
 */
struct library {
	const char *soname;
	enum entry_point first, last; /* its entries: [first, last) */
	void *absent;                 /* stands in for what it does not have */
	ElfW(Addr) base;              /* where it was when its entries were filled */
	uint32_t fills;               /* how often they were */
	void *handle; /* of scope_library(): it is never unloaded; NULL: it may be */
	/* That of another namespace, if it came first. Set once; adopted is 2 when it is, and what
	 * else is said here is true then (release; pairs with the acquire in library_find()). */
	uint32_t adopted;
	unsigned int namespace;
	struct elf_object object;
};

extern struct library library_cuda, library_nvml;

/* The library that would export `name`, or NULL: cublas, cudnn, cuda… are other libraries' names.
 */
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

/* Fill the library's entries if it is loaded, anew if it was unloaded and loaded again. Returns
 * whether it is loaded; *object, if not NULL, is what was found. */
bool library_find(struct library *library, struct elf_object *object);

/* Have an object of another namespace be the library, if there is none yet. It must not be
 * unloaded. */
void library_adopt(struct library *library, const struct elf_object *object,
                   unsigned int namespace);

/* What stands for a function of the library that has no hook: its stub in an elastic slice
 * (gate.h), or itself. */
void *library_gate(const struct library *library, const char *name, void *function);

/* The hook for a function that the library found under an address, or NULL: it has no row, or is
 * only called. *known says whether it has one. */
void *library_hook(const struct library *library, const void *function, bool *known);

/* What a program gets for `name` of the library that was found as `object`: the hook, or the
 * library's function or its stub, or NULL. */
void *library_answer(const struct library *library, const struct elf_object *object,
                     const char *name);

/* Whether a hook is of the name that the first `length` letters of `name` are, in any version. */
bool library_hook_of_stem(const struct library *library, const char *name, size_t length);

#endif
