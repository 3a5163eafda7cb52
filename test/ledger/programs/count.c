/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting in a lane: by its first thread, with plain stores, and by others at the same time. No
 * count is lost, neither when a half of the word is full and retired, nor when the lane goes to
 * the next process.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>

#define OTHERS 3
#define COUNTS 200000ull
#define FULL (1ull << 31) /* a half is retired at this count */

static struct ledger *ledger;
static struct ledger_account account;

static uint64_t allocations(void)
{
	return ledger->device[0].retired_allocations +
	       ledger_allocations(&ledger->lane[1].entry[0]);
}

static void *count(void *first)
{
	for (unsigned i = 0; i < COUNTS; i++) {
		ledger_begin_uncharged(&account, first != NULL);
		ledger_count_allocation(&account, first != NULL);
		ledger_end_uncharged(&account, first != NULL);
	}
	return NULL;
}

static void by_all_at_once(uint64_t before, uint64_t retired)
{
	struct ledger_uncharged calls, calls_before = ledger_uncharged(ledger, 0, 1);
	pthread_t others[OTHERS];

	for (int i = 0; i < OTHERS; i++) {
		if (pthread_create(&others[i], NULL, count, NULL) != 0)
			FAIL("no thread");
	}
	count(&account);
	for (int i = 0; i < OTHERS; i++)
		pthread_join(others[i], NULL);
	if (allocations() != before + (OTHERS + 1) * COUNTS)
		FAIL("%" PRIu64 " allocations after %" PRIu64, allocations(), before);
	if (ledger->device[0].retired_allocations != retired)
		FAIL("%" PRIu64 " of them retired", ledger->device[0].retired_allocations);
	calls = ledger_uncharged(ledger, 0, 1);
	if (calls.under_way != 0 || calls.ended - calls_before.ended != (OTHERS + 1) * COUNTS)
		FAIL("%u calls under way, %u ended", calls.under_way, calls.ended);
}

/* Calls of the first thread and of others at the same time: both words are one number. */
static void under_way(void)
{
	uint32_t ended = ledger_uncharged(ledger, 0, 1).ended;
	struct ledger_uncharged calls;

	ledger_begin_uncharged(&account, true);
	ledger_begin_uncharged(&account, false);
	ledger_begin_uncharged(&account, false);
	calls = ledger_uncharged(ledger, 0, 1);
	if (calls.under_way != 3 || calls.ended != ended)
		FAIL("of 3 calls %u are under way, %u ended", calls.under_way, calls.ended - ended);
	ledger_end_uncharged(&account, true);
	ledger_end_uncharged(&account, false);
	calls = ledger_uncharged(ledger, 0, 1);
	if (calls.under_way != 1 || calls.ended != ended + 2)
		FAIL("of 1 call %u are under way, %u ended", calls.under_way, calls.ended - ended);
	ledger_end_uncharged(&account, false);
}

/* Leaves room for `left` counts in a half. */
static void fill(unsigned half, uint64_t left)
{
	uint32_t *word = (uint32_t *)(void *)&ledger->lane[1].entry[0].allocations;

	__atomic_store_n(&word[half], (uint32_t)(FULL - left), __ATOMIC_RELAXED);
}

int main(void)
{
	const uint8_t name[16] = {1};
	uint64_t before;

	ledger = shared_memory(sizeof(*ledger));
	ledger_format(ledger, name);
	ledger->device_count = 1;
	account = ledger_open(ledger, 0, 1);
	by_all_at_once(0, 0);
	under_way();

	fill(0, COUNTS / 2); /* the first thread's half */
	fill(1, COUNTS);     /* the others' half */
	before = allocations();
	if (before != 2 * FULL - COUNTS / 2 - COUNTS)
		FAIL("both halves hold %" PRIu64, before);
	by_all_at_once(before, 2 * FULL);

	/* The next process's lane counts from zero, and the total is kept. */
	before = allocations();
	if (ledger_set(&account, 4096) != LEDGER_OK || ledger_recycle(ledger, 1) != LEDGER_OK)
		FAIL("the lane cannot be given to another");
	if (allocations() != before || ledger_allocations(&ledger->lane[1].entry[0]) != 0)
		FAIL("%" PRIu64 " allocations of %" PRIu64 " are left", allocations(), before);
	if (ledger_uncharged(ledger, 0, 1).ended != 0)
		FAIL("the next process has ended calls");
	printf("%" PRIu64 " allocations counted\n", before);
	return 0;
}
