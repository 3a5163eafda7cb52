/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots through which an object calls others' functions, or has their addresses: targets of
 * relocations JUMP_SLOT, GLOB_DAT and similar.
 */
#ifndef GPUSLICE_SLOT_H
#define GPUSLICE_SLOT_H

#include "elf_symbol.h"

struct mapped {
	struct elf_object elf;
	const ElfW(Dyn) * dynamic;
	ElfW(Addr) relro_start, relro_end; /* pages that the loader made read-only */
};

/* Reads an object on a list of the loader's. False if it has no such slots. */
bool slot_read_object(const struct link_map *map, struct mapped *object);

/* Returns the new value of a slot; NULL: unchanged. */
typedef void *slot_exchange(void *context, const struct elf_object *object,
                            const ElfW(Sym) * symbol, const void *value);

void slot_set_all(const struct mapped *object, slot_exchange *exchange, void *context);

#endif
