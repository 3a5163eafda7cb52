/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger on a hostile page. The input is first the page as a process of the slice left it, and
 * then the steps of others: the enforcer (its own functions on the page, too) and processes, in any
 * order. No access may leave the page, which lies between two inaccessible ones, and every function
 * must return. A lane's owner must still know its bytes, which its own memory has.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include "../../enforcer/ledger/native.c"

#include <string.h>
#include <sys/mman.h>

#define GUARD 65536u
#define ROOM ((sizeof(struct ledger) + 4095) / 4096 * 4096)
#define OWN_LANE 2u

static struct ledger *page;

static struct ledger *new_page(void)
{
	char *all =
	    mmap(NULL, ROOM + 2 * (size_t)GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(all != MAP_FAILED, "a page can be mapped");
	must(mprotect(all + GUARD, ROOM, PROT_READ | PROT_WRITE) == 0, "it can be opened");
	/* The page after it is inaccessible. */
	return (struct ledger *)(void *)(all + GUARD + ROOM - sizeof(struct ledger));
}

struct input {
	const uint8_t *data;
	size_t size;
};

static uint64_t take(struct input *in, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes && in->size > 0; i++, in->size--)
		value |= (uint64_t)*in->data++ << 8 * i;
	return value;
}

/* Values at the edges of ranges. */
static uint64_t take_value(struct input *in)
{
	static const uint64_t edges[] = {0,
	                                 1,
	                                 1 << 21,
	                                 UINT64_MAX,
	                                 UINT64_MAX - 1,
	                                 LEDGER_TAG_NUMBER,
	                                 LEDGER_TAG_NUMBER + 1,
	                                 (uint64_t)LEDGER_SLOTS << 48,
	                                 (uint64_t)(LEDGER_SLOTS + 1) << 48,
	                                 (uint64_t)OWN_LANE << 48 | 1};
	uint64_t kind = take(in, 1);

	if (kind < sizeof(edges) / sizeof(edges[0]))
		return edges[kind];
	return take(in, kind < 128 ? 2 : 8);
}

/* In the header, the devices, or a lane that the functions below use. */
static void overwrite(struct input *in)
{
	static const uint32_t lanes[] = {0, 1, OWN_LANE, 3, LEDGER_SLOTS};
	uint64_t where = take(in, 2), value = take_value(in);
	uint64_t *words = (uint64_t *)(void *)page;
	size_t header = offsetof(struct ledger, lane) / 8, lane = sizeof(struct ledger_lane) / 8;

	if (where % 2 == 0) {
		words[where / 2 % header] = value;
	} else {
		words = (uint64_t *)(void *)&page->lane[lanes[where / 2 % 5]];
		words[where / 10 % lane] = value;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	const uint8_t name[16] = {1};
	struct ledger_account own, enforcer;
	uint8_t live[8] = {1, 1, 1, 1};

	if (!page)
		page = new_page();
	must(madvise((char *)page + sizeof(*page) - ROOM, ROOM, MADV_DONTNEED) == 0,
	     "the page is empty again");
	ledger_format(page, name);
	own = ledger_open(page, 0, OWN_LANE);
	enforcer = ledger_open(page, 0, 0);
	(void)ledger_limit(&enforcer, 1 << 30);
	while (in.size > 0) {
		uint64_t held = own.held, value, bytes[LEDGER_DEVICES] = {0};
		uint32_t device, lane;
		struct native_owner owner = {.pid = 1};
		enum ledger_result result;

		switch (take(&in, 1) % 20) {
		default:
			overwrite(&in);
			break;
		case 0:
			value = take_value(&in);
			result = ledger_charge(&own, value);
			must(own.held == (result == LEDGER_OK ? held + value : held),
			     "a charge counts if it is granted");
			break;
		case 1:
			value = take_value(&in);
			result = ledger_release(&own, value);
			must(result != LEDGER_OK || own.held == (value < held ? held - value : 0),
			     "a release gives back what it says");
			break;
		case 2:
			value = take_value(&in);
			result = ledger_set(&own, value);
			must(own.held == (result == LEDGER_OK ? value : held), "a set counts");
			break;
		case 3:
			(void)ledger_limit(&enforcer, take_value(&in));
			break;
		case 4:
			device = (uint32_t)take(&in, 1) % LEDGER_DEVICES;
			lane = (uint32_t)take(&in, 2) % LEDGER_LANES;
			(void)ledger_settle(page, device, lane, take_value(&in), bytes);
			break;
		case 5:
			lane = 1 + (uint32_t)take(&in, 2) % LEDGER_SLOTS;
			if (native_assign(page, lane, &owner) != LEDGER_OK)
				break;
			for (device = 0; device < LEDGER_DEVICES; device++) {
				struct ledger_uncharged calls =
				    ledger_uncharged(page, device, lane);

				must(!calls.under_way && !calls.ended,
				     "a new owner has no calls under way");
			}
			break;
		case 6:
			(void)native_settle(page, 3, page->lane[3].generation, LEDGER_DEVICES,
			                    bytes);
			native_free(page, 3);
			break;
		case 7:
			(void)ledger_set(&enforcer, take_value(&in));
			break;
		case 8:
			(void)native_sums(page, (uint32_t)take(&in, 1) % LEDGER_DEVICES, live, 8);
			lane = (uint32_t)take(&in, 2) % LEDGER_LANES;
			(void)ledger_number(page, 0, lane);
			(void)ledger_uncharged(page, 0, lane);
			break;
		case 9:
			value = take_value(&in);
			ledger_lend(page, value);
			must(!value || ledger_lent(page, value), "a name that was lent is known");
			ledger_unlend(page, value);
			must(!ledger_lent(page, value), "one that is lent no more is not");
			ledger_lend(page, value);
			break;
		case 10: /* a process of the slice that begins, and an enforcer that is started
		            again */
			(void)ledger_open(page, 0, 1);
			enforcer = ledger_open(page, 0, 0);
			break;
		case 11:
			(void)native_device(&enforcer, name, take_value(&in), 1, 2, 3);
			native_close(page);
			break;
		case 12:
			ledger_begin_uncharged(&own, false);
			ledger_count_allocation(&own, true);
			ledger_end_uncharged(&own, false);
			ledger_count_refusal(&own);
			ledger_set_context(&own, take_value(&in));
			break;
		}
	}
	return 0;
}
