/* SPDX-License-Identifier: Apache-2.0 */
#include "map.h"

#include <sys/mman.h>

/*
 * A map begins with 512 entries and grows fourfold, its pages made at once: taking them by faults,
 * and growing by less, doubled the cost of the first 20,000 allocations.
 */
#define FIRST_BITS 9
#define GROW_BITS 2

bool map_grow_(struct map *map, size_t size)
{
	struct map larger = {.bits = map->entries ? map->bits + GROW_BITS : FIRST_BITS,
	                     .count = map->count};
	size_t stride = map_stride(size);

	larger.entries = mmap(NULL, stride << larger.bits, PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (larger.entries == MAP_FAILED)
		return false;
	if (map->entries) {
		for (uint64_t i = 0; i < 1ull << map->bits; i++) {
			const uint64_t *entry = map_at(map, i, size);

			if (*entry)
				memcpy(map_at(&larger, map_place(&larger, *entry, size), size),
				       entry, stride);
		}
		munmap(map->entries, stride << map->bits);
	}
	*map = larger;
	return true;
}

/* Entry i is free now. */
void map_close_gap_(struct map *map, uint64_t i, size_t size)
{
	uint64_t mask = (1ull << map->bits) - 1;

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
		munmap(map->entries, map_stride(size) << map->bits);
	*map = (struct map){0};
}
