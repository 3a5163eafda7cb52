/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <sys/mman.h>

/*
 * 512 entries first, then fourfold, with all pages populated: page faults and smaller steps doubled
 * the cost of the first 20,000 allocations.
 */
#define FIRST_BITS 9
#define GROW_BITS 2

/* Returns the number of entries, in use or free. */
static uint64_t room(const struct map *map)
{
	return map->entries ? 1ull << (64 - map->shift) : 0;
}

static size_t bytes_of(const struct map *map, size_t size)
{
	return map_stride(size) * room(map) + sizeof(uint64_t);
}

/* Returns the place of `key`, or the free one where it belongs. */
static uint64_t place(const struct map *map, uint64_t key, size_t size)
{
	uint64_t mask = room(map) - 1, i = map_home(map, key);

	while (*map_at(map, i, size) && *map_at(map, i, size) != key)
		i = (i + 1) & mask;
	return i;
}

static bool grow(struct map *map, size_t size)
{
	uint64_t before = room(map), after = before ? before << GROW_BITS : 1 << FIRST_BITS;
	size_t stride = map_stride(size);
	struct map larger = *map;

	larger.shift = before ? map->shift - GROW_BITS : 64 - FIRST_BITS;
	larger.full = (uint32_t)(3 * after / 4);
	larger.entries = mmap(NULL, stride * after + sizeof(uint64_t), PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (larger.entries == MAP_FAILED)
		return false;
	*map_at(&larger, after, size) = 1; /* see map_remove_() */
	for (uint64_t i = 0; i < before; i++) {
		const uint64_t *entry = map_at(map, i, size);

		if (*entry)
			memcpy(map_at(&larger, place(&larger, *entry, size), size), entry, stride);
	}
	map_end_(map, size);
	*map = larger;
	return true;
}

void *map_find_far_(const struct map *map, uint64_t key, size_t size)
{
	uint64_t *entry = map_at(map, place(map, key, size), size);

	return *entry ? entry + 1 : NULL;
}

void *map_put_far_(struct map *map, uint64_t key, size_t size, bool *fresh)
{
	uint64_t *entry;

	/* At most three quarters full. If it cannot grow, one entry stays free. */
	if (map->count >= map->full)
		(void)grow(map, size);
	if (!map->entries || !key)
		return NULL;
	entry = map_at(map, place(map, key, size), size);
	if (fresh)
		*fresh = !*entry;
	if (!*entry) {
		if (map->count + 1ull >= room(map))
			return NULL;
		map->count++;
		*entry = key;
		memset(entry + 1, 0, size);
	}
	return entry + 1;
}

void map_close_gap_(struct map *map, uint64_t *entry, size_t size)
{
	uint64_t mask = room(map) - 1;
	uint64_t i = (uint64_t)((unsigned char *)entry - map->entries) / map_stride(size);

	for (uint64_t next = (i + 1) & mask; *map_at(map, next, size); next = (next + 1) & mask) {
		uint64_t home = map_home(map, *map_at(map, next, size));

		if (((next - home) & mask) >= ((next - i) & mask)) {
			memcpy(map_at(map, i, size), map_at(map, next, size), map_stride(size));
			*map_at(map, next, size) = 0;
			i = next;
		}
	}
}

void *map_next_(const struct map *map, const void *at, size_t size)
{
	uint64_t i = 0;

	if (at)
		i = (uint64_t)((const unsigned char *)at - sizeof(uint64_t) - map->entries) /
		        map_stride(size) +
		    1;
	for (; i < room(map); i++) {
		if (*map_at(map, i, size))
			return map_at(map, i, size) + 1;
	}
	return NULL;
}

void *map_before_(const struct map *map, const void *at, size_t size)
{
	const unsigned char *before = (const unsigned char *)at - map_stride(size);

	return before < map->entries ? NULL : (void *)(uintptr_t)before;
}

void *map_remove_at_(struct map *map, void *at, size_t size)
{
	void *before = map_before_(map, at, size);

	map_remove_(map, at, size);
	return before;
}

void map_end_(struct map *map, size_t size)
{
	if (map->entries)
		munmap(map->entries, bytes_of(map, size));
	*map = (struct map){0};
}
