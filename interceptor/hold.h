/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds with one handle or address, and one size: managed memory, arrays,
 * imports, code. The key is the handle or the address. */
#ifndef GPUSLICE_HOLD_H
#define GPUSLICE_HOLD_H

#include "import.h"
#include "lock.h"
#include "map.h"
#include "process.h"

struct holding {
	uint64_t bytes;
	uint64_t owner; /* the context that it ends with, or 0 */
	/* The holding ends with its source: the library of code, the module or library of managed
	 * variables, the imported pool of a pool's memory; or 0. */
	uint64_t source;
	CUdevice ordinal;
	enum kind kind;
	uint32_t opens;        /* how often it was opened, if it can be opened again */
	struct import *import; /* the import that it is, or is part of; or NULL */
};

struct holds {
	struct lock lock;
	MAP(struct holding) by_key;
	bool any_source; /* a holding with a source was ever recorded */
};

/* Record what was charged. Without memory for the record, it stays charged until the process ends:
 * too much rather than too little. */
void hold(uint64_t key, const struct holding *holding);

/* Record a part of what is held under one key, or one more use of it; parts may be empty. False if
 * something was held already: only the bytes and uses of *more count then. */
bool hold_add(uint64_t key, const struct holding *more);

/* Get what is held; false, and all zero, if it is unknown. */
bool hold_get(uint64_t key, struct holding *holding);

/* Return the number of holdings that share overhead and are charged nothing for it. */
uint64_t hold_count_sharing(CUdevice ordinal);

/* Hold the bytes of a charged request if it succeeded, else release them. Returns `result`. */
CUresult hold_or_release(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes,
                         enum kind kind);

/* Enclose the call that frees what is held: see block_leave() for the order. */
bool unhold(uint64_t key, struct holding *holding);
CUresult release_or_hold(CUresult result, uint64_t key, const struct holding *holding);

/* Return the import with one more user, or NULL. */
struct import *hold_import(uint64_t key);

/* Count one use more or less; false if nothing is held. The last use removes the holding; *holding
 * is the state before. */
bool hold_open(uint64_t key);
bool hold_close(uint64_t key, struct holding *holding);

/* Enclose the call that ends a source. All that came from it is released. */
void hold_source_leave(uint64_t source);
CUresult hold_source_left(CUresult result, uint64_t source);

/* Give an owner's holdings to another, or release them: see leaving.h. */
void hold_set_owner(uint64_t from, uint64_t to);
void hold_owner_gone(uint64_t owner);

#endif
