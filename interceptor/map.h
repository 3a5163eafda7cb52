/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from addresses or handles to values:
 *
 *     MAP(struct mapping) mappings;
 *     struct mapping *found = map_find(&mappings, address);
 *
 * The caller locks it. A pointer to a value is valid until the map changes. All zero is an empty
 * map. Open addressing, linear probing. Its memory is from mmap(): the program's own malloc() may
 * be the caller.
 */
#ifndef GPUSLICE_MAP_H
#define GPUSLICE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct map {
	unsigned char *entries; /* each a nonzero key and a value */
	uint32_t shift;         /* room for 1 << (64 - shift) entries */
	uint32_t count;
	uint32_t full; /* the count at which it grows */
};

#define MAP(type)                                                                                  \
	union {                                                                                    \
		struct map map;                                                                    \
		type *value; /* for its type only */                                               \
	}

#define map_find(m, key) ((__typeof__((m)->value))map_find_(&(m)->map, key, sizeof(*(m)->value)))

/* Returns the value of `key`. A new one is all zero, and sets *fresh if that is not NULL. Returns
 * NULL without memory. */
#define map_put(m, key, fresh)                                                                     \
	((__typeof__((m)->value))map_put_(&(m)->map, key, sizeof(*(m)->value), fresh))

/* Removes what map_find() or map_put() returned. */
#define map_remove(m, found) map_remove_(&(m)->map, found, sizeof(*(m)->value))

/* Iterates over all values, in no order: `for (at = NULL; (at = map_next(m, at));)`. Another may
 * take the place of a removed one: `at = map_remove_at(m, at)`, or continue from map_before(m, at).
 */
#define map_next(m, at) ((__typeof__((m)->value))map_next_(&(m)->map, at, sizeof(*(m)->value)))
#define map_before(m, at) ((__typeof__((m)->value))map_before_(&(m)->map, at, sizeof(*(m)->value)))
#define map_remove_at(m, at)                                                                       \
	((__typeof__((m)->value))map_remove_at_(&(m)->map, at, sizeof(*(m)->value)))

/* Frees the memory; the map is empty then. */
#define map_end(m) map_end_(&(m)->map, sizeof(*(m)->value))

static inline uint64_t map_key_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

static inline uint64_t map_key(const void *value)
{
	return ((const uint64_t *)value)[-1];
}

/* The key is not in its home, or the map may have to grow. */
void *map_find_far_(const struct map *map, uint64_t key, size_t size);
void *map_put_far_(struct map *map, uint64_t key, size_t size, bool *fresh);
void map_close_gap_(struct map *map, uint64_t *entry, size_t size);
void *map_next_(const struct map *map, const void *at, size_t size);
void *map_before_(const struct map *map, const void *at, size_t size);
void *map_remove_at_(struct map *map, void *at, size_t size);
void map_end_(struct map *map, size_t size);

static inline size_t map_stride(size_t size)
{
	return sizeof(uint64_t) + ((size + 7) & ~(size_t)7);
}

/* Device addresses differ in their middle bits, handles in their low ones: multiply (Knuth's golden
 * ratio constant) and use the high bits. */
static inline uint64_t map_home(const struct map *map, uint64_t key)
{
	return (key * 0x9e3779b97f4a7c15ull) >> map->shift;
}

static inline uint64_t *map_at(const struct map *map, uint64_t i, size_t size)
{
	return (uint64_t *)(void *)(map->entries + i * map_stride(size));
}

/* Returns the home of `key`, which may have another key. */
static inline uint64_t *map_at_home(const struct map *map, uint64_t key, size_t size)
{
	return map_at(map, map_home(map, key), size);
}

static inline void *map_put_home_(struct map *map, uint64_t key, size_t size)
{
	uint64_t *entry;

	if (__builtin_expect(map->count >= map->full || !key, 0))
		return NULL;
	entry = map_at_home(map, key, size);
	if (__builtin_expect(*entry != 0, 0))
		return NULL;
	map->count++;
	*entry = key;
	return entry + 1;
}

static inline void *map_find_(const struct map *map, uint64_t key, size_t size)
{
	uint64_t *entry;

	if (!map->count || !key)
		return NULL;
	entry = map_at_home(map, key, size);
	if (__builtin_expect(*entry == key, 1))
		return entry + 1;
	return *entry ? map_find_far_(map, key, size) : NULL;
}

static inline void *map_put_(struct map *map, uint64_t key, size_t size, bool *fresh)
{
	void *value = map_put_home_(map, key, size);

	if (__builtin_expect(!value, 0))
		return map_put_far_(map, key, size, fresh);
	if (fresh)
		*fresh = true;
	return memset(value, 0, size);
}

/* Frees the entry, and moves up later ones displaced by it. */
static inline void map_remove_(struct map *map, void *value, size_t size)
{
	uint64_t *entry = (uint64_t *)value - 1;

	*entry = 0;
	map->count--;
	/* An entry that is never free follows the last. */
	if (__builtin_expect(entry[map_stride(size) / sizeof(*entry)] != 0, 0))
		map_close_gap_(map, entry, size);
}

#endif
