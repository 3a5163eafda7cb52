/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process holds that has one handle or address and one size: managed memory, arrays,
 * imports, code. By its key, which is the handle or the address.
 */
#ifndef GPUSLICE_HOLD_H
#define GPUSLICE_HOLD_H

#include "import.h"
#include "lock.h"
#include "map.h"
#include "process.h"

struct holding {
	uint64_t bytes;
	uint64_t owner; /* the context that it ends with, or 0 */
	/* Its end is also the end of this holding: the library of code, the module or library of
	 * managed variables, the imported pool of a pool's memory; or 0. */
	uint64_t source;
	CUdevice ordinal;
	enum kind kind;
	uint32_t opens;        /* how often it was opened, of what can be opened again */
	struct import *import; /* which it is, or part of; else NULL */
};

struct holds {
	struct lock lock;
	MAP(struct holding) by_key;
	bool any_source; /* one ever had one */
};

/* Remember what was charged for. If there is no memory for that it stays charged until the process
 * ends: too much rather than too little. */
void hold(uint64_t key, const struct holding *holding);

/* The same for what is held in parts under one key, maybe none of them larger than nothing. */
void hold_part(uint64_t key, const struct holding *part);
bool hold_known(uint64_t key);
uint64_t hold_bytes(uint64_t key); /* 0 of what is not known */

/* How much on the device has overhead, shared with others, that is charged to none of them. */
uint64_t hold_count_sharing(CUdevice ordinal);

/*
 * After the driver answered a request that was charged: hold the bytes under `key` if it succeeded,
 * give them back if not. Returns `result`.
 */
CUresult hold_or_release(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes,
                         enum kind kind);

/* Around the call that releases it, in the order that block.h explains for block_leave(). */
bool unhold(uint64_t key, struct holding *holding);
CUresult release_or_hold(CUresult result, uint64_t key, const struct holding *holding);

/* Return the import under a key, with one more user; NULL if there is none. */
struct import *hold_import(uint64_t key);

/* One use more of what is held, or one less: false if nothing is. *holding is what it was; the last
 * use takes it out. */
bool hold_open(uint64_t key);
bool hold_close(uint64_t key, struct holding *holding);

/* Around the call that ends a source: give back all that came from it. */
void hold_source_leave(uint64_t source);
CUresult hold_source_left(CUresult result, uint64_t source);

/* See context_leave(): what belongs to one owner belongs to another, or is given back. */
void hold_set_owner(struct process *process, uint64_t from, uint64_t to);
void hold_owner_gone(struct process *process, uint64_t owner);

#endif
