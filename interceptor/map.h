/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from addresses and handles to what is known about them, for many threads. Sharded, so that
 * threads seldom meet and no single insertion pays for growing all of it: the cost stays flat up to
 * millions of entries. All zero is an empty map.
 */
#ifndef GPUSLICE_MAP_H
#define GPUSLICE_MAP_H

#include "lock.h"

#include <stdbool.h>
#include <stdint.h>

#define MAP_SHARDS 64

struct map_value {
	uint64_t bytes; /* charged for it */
	uint64_t owner; /* the context that it belongs to, or 0; hook_vmm.c keeps pointers here */
	int32_t ordinal;
	int32_t uses; /* block.c: live pointers in it */
};

struct map_entry {
	uint64_t key; /* never 0 */
	struct map_value value;
};

struct map_shard {
	struct lock lock;
	uint32_t bits; /* room for 1 << bits entries, if `entries` is not NULL */
	uint64_t count;
	struct map_entry *entries;
};

struct map {
	struct map_shard shard[MAP_SHARDS];
};

/* Insert or replace. False if there is no memory for it. */
bool map_put(struct map *map, uint64_t key, struct map_value value);

/* Look up; with `remove`, take it out. */
bool map_get(struct map *map, uint64_t key, struct map_value *value);
bool map_take(struct map *map, uint64_t key, struct map_value *value);

/*
 * Add `by` to the uses of what is there, and take it out if none is left. False if nothing is
 * there. *value is what it is afterwards.
 */
bool map_use(struct map *map, uint64_t key, int by, struct map_value *value);

/* The same, but if nothing is there insert `fresh`; true if it was inserted. *full is set if there
 * was no memory for that. */
bool map_use_or_put(struct map *map, uint64_t key, struct map_value fresh, bool *full);

/* Call `visit` for each entry, with the shard's lock held; entries for which it returns true
 * are taken out. `visit` must not use the map. */
void map_sweep(struct map *map, bool (*visit)(void *data, uint64_t key, struct map_value *value),
               void *data);

#endif
