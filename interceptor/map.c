/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <stddef.h>
#include <sys/mman.h>

/*
 * A shard begins with 512 entries (16 KiB) and grows fourfold, its pages made at once: taking
 * them by faults, and growing by less, doubled the cost of the first 20,000 allocations.
 */
#define FIRST_BITS 9
#define GROW_BITS 2

/* Device addresses differ in their middle bits, handles in their low ones: multiply (Knuth's
 * golden ratio constant) and use the high bits, shard first. */
static uint64_t hash_of(uint64_t key)
{
	return (key >> 4 ^ key) * 0x9e3779b97f4a7c15ull;
}

static struct map_shard *shard_of(struct map *map, uint64_t key)
{
	return &map->shard[hash_of(key) >> 58];
}

static uint64_t home_of(const struct map_shard *shard, uint64_t key)
{
	return hash_of(key) << 6 >> (64 - shard->bits);
}

/* The entry of `key`, or the free one where it belongs. There is always a free one. */
static uint64_t find(const struct map_shard *shard, uint64_t key)
{
	uint64_t mask = (1ull << shard->bits) - 1;
	uint64_t i = home_of(shard, key);

	while (shard->entries[i].key && shard->entries[i].key != key)
		i = (i + 1) & mask;
	return i;
}

static bool grow(struct map_shard *shard)
{
	struct map_shard larger = {.bits = shard->entries ? shard->bits + GROW_BITS : FIRST_BITS,
	                           .count = shard->count};
	size_t bytes = sizeof(struct map_entry) << larger.bits;

	/* Not malloc(): the program may have its own, and may be inside it. */
	larger.entries = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (larger.entries == MAP_FAILED)
		return false;
	if (shard->entries) {
		for (uint64_t i = 0; i < 1ull << shard->bits; i++) {
			const struct map_entry *entry = &shard->entries[i];

			if (entry->key)
				larger.entries[find(&larger, entry->key)] = *entry;
		}
		munmap(shard->entries, sizeof(struct map_entry) << shard->bits);
	}
	shard->entries = larger.entries;
	shard->bits = larger.bits;
	return true;
}

/* Free entry i, and move up those behind it that could not get their place because of it. */
static void vacate(struct map_shard *shard, uint64_t i)
{
	uint64_t mask = (1ull << shard->bits) - 1;

	for (uint64_t next = (i + 1) & mask; shard->entries[next].key; next = (next + 1) & mask) {
		uint64_t home = home_of(shard, shard->entries[next].key);

		if (((next - home) & mask) >= ((next - i) & mask)) {
			shard->entries[i] = shard->entries[next];
			i = next;
		}
	}
	shard->entries[i].key = 0;
	shard->count--;
}

/* With the shard's lock held: room for one more entry. At most three quarters full; if it cannot
 * grow, go on until one entry is left free. */
static bool make_room(struct map_shard *shard)
{
	if (!shard->entries || shard->count >= 3ull << shard->bits >> 2)
		(void)grow(shard);
	return shard->entries && shard->count + 1 < 1ull << shard->bits;
}

static void fill(struct map_shard *shard, uint64_t i, uint64_t key, struct map_value value)
{
	if (!shard->entries[i].key)
		shard->count++;
	shard->entries[i].key = key;
	shard->entries[i].value = value;
}

bool map_put(struct map *map, uint64_t key, struct map_value value)
{
	struct map_shard *shard = shard_of(map, key);
	bool room;

	lock_take(&shard->lock);
	room = make_room(shard);
	if (room)
		fill(shard, find(shard, key), key, value);
	lock_give(&shard->lock);
	return room;
}

bool map_use(struct map *map, uint64_t key, int by, struct map_value *value)
{
	struct map_shard *shard = shard_of(map, key);
	bool found = false;

	lock_take(&shard->lock);
	if (shard->entries) {
		uint64_t i = find(shard, key);

		if (shard->entries[i].key) {
			shard->entries[i].value.uses += by;
			*value = shard->entries[i].value;
			found = true;
			if (value->uses == 0)
				vacate(shard, i);
		}
	}
	lock_give(&shard->lock);
	return found;
}

bool map_use_or_put(struct map *map, uint64_t key, struct map_value fresh, bool *full)
{
	struct map_shard *shard = shard_of(map, key);
	bool put = false;
	uint64_t i;

	*full = false;
	lock_take(&shard->lock);
	if (make_room(shard)) {
		i = find(shard, key);
		put = !shard->entries[i].key;
		if (put)
			fill(shard, i, key, fresh);
		else
			shard->entries[i].value.uses += fresh.uses;
	} else {
		*full = true;
	}
	lock_give(&shard->lock);
	return put;
}

static bool look(struct map *map, uint64_t key, struct map_value *value, bool take)
{
	struct map_shard *shard = shard_of(map, key);
	bool found = false;

	lock_take(&shard->lock);
	if (shard->entries && key) {
		uint64_t i = find(shard, key);

		if (shard->entries[i].key) {
			*value = shard->entries[i].value;
			found = true;
			if (take)
				vacate(shard, i);
		}
	}
	lock_give(&shard->lock);
	return found;
}

bool map_get(struct map *map, uint64_t key, struct map_value *value)
{
	return look(map, key, value, false);
}

bool map_take(struct map *map, uint64_t key, struct map_value *value)
{
	return look(map, key, value, true);
}

void map_sweep(struct map *map, bool (*visit)(void *data, uint64_t key, struct map_value *value),
               void *data)
{
	for (unsigned s = 0; s < MAP_SHARDS; s++) {
		struct map_shard *shard = &map->shard[s];

		lock_take(&shard->lock);
		for (uint64_t i = 0; shard->entries && i < 1ull << shard->bits;) {
			struct map_entry *entry = &shard->entries[i];

			/* What moves into a vacated place is visited next. */
			if (entry->key && visit(data, entry->key, &entry->value))
				vacate(shard, i);
			else
				i++;
		}
		lock_give(&shard->lock);
	}
}
