/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots by which a loaded object calls functions of others, or has their addresses: what its
 * relocations of type JUMP_SLOT, GLOB_DAT and the like fill.
 */
#ifndef GPUSLICE_SLOT_H
#define GPUSLICE_SLOT_H

#include "elf_symbol.h"

struct mapped {
	struct elf_object elf;
	const ElfW(Dyn) * dynamic;
	ElfW(Addr) relro_start, relro_end; /* pages that the loader made read-only */
};

/* Read an object on one of the loader's lists. False if it is none that calls others by slots. */
bool slot_read_object(const struct link_map *map, struct mapped *object);

/* What a slot that now has `value` shall have; NULL: it stays. */
typedef void *slot_exchange(void *context, const struct elf_object *object,
                            const ElfW(Sym) * symbol, const void *value);

/* Ask that of each slot of the object. */
void slot_set_all(const struct mapped *object, slot_exchange *exchange, void *context);

#endif
