/* SPDX-License-Identifier: Apache-2.0 */
/* The interceptor's map against a list: after any sequence of insertions and removals, also while
 * iterating, both have the same entries. For values of two sizes. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "../../interceptor/map.c"

#define MOST 4096u

struct small {
	uint8_t tag; /* less than a word: the entry is padded */
};

struct large {
	uint64_t mark, tag, again;
};

static MAP(struct small) small;
static MAP(struct large) large;

static struct {
	uint64_t key;
	uint8_t tag;
	bool passed; /* seen in this iteration */
} list[MOST];
static size_t count;

static size_t place_of(uint64_t key)
{
	size_t i = 0;

	while (i < count && list[i].key != key)
		i++;
	return i;
}

static void must_know(const struct small *s, const struct large *l, uint64_t key, uint8_t tag)
{
	must(s && l, "both know what the list has");
	must(map_key(s) == key && map_key(l) == key, "they have it under its key");
	must(s->tag == tag && l->mark == ~key && l->tag == tag && l->again == key,
	     "they have its value");
}

static void put(uint64_t key, uint8_t tag)
{
	size_t i = place_of(key);
	bool fresh_small = i < count, fresh_large = i < count;
	struct small *s;
	struct large *l;

	if (i == MOST)
		return;
	s = map_put(&small, key, &fresh_small);
	l = map_put(&large, key, &fresh_large);
	must(s && l, "there is memory");
	must(fresh_small == (i == count) && fresh_large == (i == count),
	     "what is new is called so");
	if (i == count) {
		must(!s->tag && !l->mark && !l->tag && !l->again, "what is new is all zero");
		list[count++].key = key;
	} else {
		must_know(s, l, key, list[i].tag);
	}
	list[i].tag = tag;
	*s = (struct small){tag};
	*l = (struct large){~key, tag, key};
}

static void take_out(uint64_t key)
{
	size_t i = place_of(key);
	struct small *s = map_find(&small, key);
	struct large *l = map_find(&large, key);

	if (i == count) {
		must(!s && !l, "neither knows what the list has not");
		return;
	}
	must_know(s, l, key, list[i].tag);
	map_remove(&small, s);
	map_remove(&large, l);
	list[i] = list[--count];
}

/* Was this entry not seen yet? Then whether to remove it. */
static bool pass(uint64_t key, uint8_t tag, unsigned modulus)
{
	size_t i = place_of(key);

	must(i < count && list[i].tag == tag, "what is met is there");
	list[i].passed = true;
	return tag % modulus == 0;
}

static void all_passed(void)
{
	for (size_t i = 0; i < count; i++) {
		must(list[i].passed, "nothing is left out");
		list[i].passed = false;
	}
}

/* Iterate, and remove entries with a tag that is a multiple. An entry that a removal moves across
 * the table's end may be met twice, so the list forgets the removed ones afterwards. */
static void go_through(unsigned modulus)
{
	struct small *s = NULL;
	struct large *l = NULL;
	size_t left = 0;

	while ((s = map_next(&small, s))) {
		if (pass(map_key(s), s->tag, modulus))
			s = map_remove_at(&small, s);
	}
	all_passed();
	while ((l = map_next(&large, l))) {
		must(l->mark == ~map_key(l) && l->again == map_key(l), "it has its value");
		if (pass(map_key(l), (uint8_t)l->tag, modulus))
			l = map_remove_at(&large, l);
	}
	all_passed();
	for (size_t i = 0; i < count; i++) {
		if (list[i].tag % modulus == 0)
			must(!map_find(&small, list[i].key) && !map_find(&large, list[i].key),
			     "what was taken out is gone");
		else
			list[left++] = list[i];
	}
	count = left;
}

/* Keys that collide: most inputs have few different ones, at addresses of a driver, or any number
 * that hash to the map's last entries, which continue at its start. */
static uint64_t key_of(const uint8_t *in)
{
	uint64_t key = (uint64_t)in[1] | (uint64_t)in[2] << 8;
	struct map first = {.shift = 64 - FIRST_BITS};

	if (in[0] & 64) {
		for (key = key << 21 | 1; map_home(&first, key) < (1u << FIRST_BITS) - 4;
		     key += 1 << 12)
			;
		return key;
	}
	return (in[0] & 128 ? key << 21 | 0x7f0000000000ull : key) + 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	count = 0;
	must(!map_find(&small, 1) && !map_next(&small, (struct small *)NULL),
	     "all zero is an empty map");
	must(!map_put(&small, 0, NULL) && !map_find(&small, 0), "0 is no key");
	for (; size >= 5; data += 5, size -= 5) {
		uint64_t key = key_of(data);
		unsigned many = data[4]; /* in a row: it grows */

		switch (data[0] % 8) {
		default:
			put(key, data[3]);
			break;
		case 3:
			for (unsigned n = 0; n < many; n++)
				put(key + ((uint64_t)n << 21), (uint8_t)(data[3] + n));
			break;
		case 4:
		case 5:
			take_out(key);
			break;
		case 6:
			for (unsigned n = 0; n < many; n++)
				take_out(key + ((uint64_t)n << 21));
			break;
		case 7:
			go_through(1 + data[4] % 4);
			break;
		}
		must(small.map.count == count && large.map.count == count,
		     "they know how many there are");
	}
	for (size_t i = 0; i < count; i++)
		must_know(map_find(&small, list[i].key), map_find(&large, list[i].key), list[i].key,
		          list[i].tag);
	while (count)
		take_out(list[0].key);
	must(!small.map.count && !large.map.count && !map_next(&large, (struct large *)NULL),
	     "nothing is left");
	map_end(&small);
	map_end(&large);
	must(!small.map.entries && !large.map.entries, "an ended map is empty");
	return 0;
}
