/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <sys/mman.h>

/*
 * A map begins with 512 entries and grows fourfold, its pages made at once: taking them by faults,
 * and growing by less, doubled the cost of the first 20,000 allocations.
 */
#define FIRST_BITS 9
#define GROW_BITS 2

static size_t bytes_of(uint32_t bits, size_t size)
{
	return (map_stride(size) << bits) + sizeof(uint64_t);
}

/* The place of `key`, or the free one where it belongs. There is always a free one. */
static uint64_t place(const struct map *map, uint64_t key, size_t size)
{
	uint64_t mask = (1ull << map->bits) - 1, i = map_home(map, key);

	while (*map_at(map, i, size) && *map_at(map, i, size) != key)
		i = (i + 1) & mask;
	return i;
}

static bool grow(struct map *map, size_t size)
{
	struct map larger = {.bits = map->entries ? map->bits + GROW_BITS : FIRST_BITS,
	                     .count = map->count};
	size_t stride = map_stride(size);

	larger.full = (uint32_t)(3ull << larger.bits >> 2);
	larger.entries = mmap(NULL, bytes_of(larger.bits, size), PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (larger.entries == MAP_FAILED)
		return false;
	*map_at(&larger, 1ull << larger.bits, size) = 1; /* see map_remove_() */
	if (map->entries) {
		for (uint64_t i = 0; i < 1ull << map->bits; i++) {
			const uint64_t *entry = map_at(map, i, size);

			if (*entry)
				memcpy(map_at(&larger, place(&larger, *entry, size), size), entry,
				       stride);
		}
		munmap(map->entries, bytes_of(map->bits, size));
	}
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

	/* At most three quarters full; if it cannot grow, go on until one entry is left free. */
	if (map->count >= map->full)
		(void)grow(map, size);
	if (!map->entries || !key)
		return NULL;
	entry = map_at(map, place(map, key, size), size);
	if (fresh)
		*fresh = !*entry;
	if (!*entry) {
		if (map->count + 1ull >= 1ull << map->bits)
			return NULL;
		map->count++;
		*entry = key;
		memset(entry + 1, 0, size);
	}
	return entry + 1;
}

void map_close_gap_(struct map *map, uint64_t *entry, size_t size)
{
	uint64_t mask = (1ull << map->bits) - 1;
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
	for (; map->entries && i < 1ull << map->bits; i++) {
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

void map_end_(struct map *map, size_t size)
{
	if (map->entries)
		munmap(map->entries, bytes_of(map->bits, size));
	*map = (struct map){0};
}
