/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of the interceptor against a list: whatever is put, used, swept and taken, in whatever
 * order, both know the same.
 */
#define _GNU_SOURCE
#include "../../interceptor/map.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096u

static struct {
	uint64_t key;
	struct map_value value;
} list[MOST];
static size_t count;
static uint64_t swept;

static void must(bool truth, const char *what)
{
	if (truth)
		return;
	fprintf(stderr, "map: not so: %s\n", what);
	abort();
}

static size_t place_of(uint64_t key)
{
	size_t i = 0;

	while (i < count && list[i].key != key)
		i++;
	return i;
}

static void drop(size_t i)
{
	list[i] = list[--count];
}

static bool sweep(void *data, uint64_t key, struct map_value *value)
{
	size_t i = place_of(key);

	(void)data;
	must(i < count && list[i].value.bytes == value->bytes, "what is swept is there");
	if (value->bytes % 3)
		return false;
	drop(i);
	swept++;
	return true;
}

/* Keys that meet: most inputs have few different ones, at the addresses that a driver gives out. */
static uint64_t key_of(const uint8_t *in)
{
	uint64_t key = (uint64_t)in[1] | (uint64_t)in[2] << 8;

	return (in[0] & 128 ? key << 21 | 0x7f0000000000ull : key) + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct map *map = calloc(1, sizeof(*map));

	count = 0;
	for (; size >= 5 && map; data += 5, size -= 5) {
		uint64_t key = key_of(data);
		struct map_value value = {.bytes = data[3], .uses = 1 + data[4] % 4}, got = {0};
		size_t i = place_of(key);
		bool there = i < count, full;

		switch (data[0] % 8) {
		default: {
			unsigned many = data[0] % 8 < 3 ? 1 : data[4]; /* in a row: it grows */

			for (unsigned n = 0; n < many && count < MOST;
			     n++, key += (uint64_t)1 << 21) {
				i = place_of(key);
				must(map_put(map, key, value), "there is memory");
				list[i].key = key;
				list[i].value = value;
				count += i == count;
			}
			break;
		}
		case 4:
			must(map_take(map, key, &got) == there, "what is there is taken");
			if (there) {
				must(got.bytes == list[i].value.bytes, "it has its value");
				drop(i);
			}
			break;
		case 5:
			must(map_use(map, key, -1, &got) == there, "what is there is used");
			if (there) {
				must(got.uses == --list[i].value.uses, "uses are counted");
				if (got.uses == 0)
					drop(i);
			}
			break;
		case 6:
			if (count == MOST)
				break;
			must(map_use_or_put(map, key, value, &full) == !there && !full,
			     "what is not there is put");
			if (there) {
				list[i].value.uses += value.uses;
			} else {
				list[count].key = key;
				list[count++].value = value;
			}
			break;
		case 7:
			map_sweep(map, sweep, NULL);
			break;
		}
		must(map_get(map, key, &got) == (place_of(key) < count),
		     "both know the key or neither");
	}
	for (size_t i = 0; map && i < count; i++) {
		struct map_value got;

		must(map_take(map, list[i].key, &got) && got.bytes == list[i].value.bytes &&
		         got.uses == list[i].value.uses,
		     "nothing is lost");
	}
	for (unsigned s = 0; map && s < MAP_SHARDS; s++) {
		must(map->shard[s].count == 0, "nothing is left");
		if (map->shard[s].entries)
			munmap(map->shard[s].entries, sizeof(struct map_entry)
			                                  << map->shard[s].bits);
	}
	free(map);
	return 0;
}
