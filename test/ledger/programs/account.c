/* SPDX-License-Identifier: Apache-2.0 */
/* charge.c step by step, with nobody else there: what each call does to the two ledgers. */
#define _GNU_SOURCE
#include "charge.h"
#include "check.h"

static const uint8_t uuid[16] = {7};

static struct ledger *make(const char *pool, uint32_t device, uint64_t limit)
{
	struct ledger *ledger = shared_memory(sizeof(*ledger));
	uint8_t name[16] = {1};
	struct ledger_account enforcer;

	ledger_format(ledger, name);
	strncpy(ledger->pool, pool, sizeof(ledger->pool) - 1);
	memcpy(ledger->device[device].uuid, uuid, sizeof(uuid));
	ledger->device_count = device + 1;
	enforcer = ledger_open(ledger, device, 0);
	if (ledger_limit(&enforcer, limit) != LEDGER_OK)
		FAIL("the enforcer cannot begin");
	return ledger;
}

static void check(const char *when, const struct account *a, uint64_t held, uint64_t in_pool)
{
	if (a->slice.held != held || used_of(a->slice.ledger, a->slice.device) != held)
		FAIL("%s: the slice has %" PRIu64 " of %" PRIu64, when,
		     used_of(a->slice.ledger, a->slice.device), held);
	if (a->pool.ledger &&
	    (a->pool.held != in_pool || used_of(a->pool.ledger, a->pool.device) != in_pool))
		FAIL("%s: the pool has %" PRIu64 " of %" PRIu64, when,
		     used_of(a->pool.ledger, a->pool.device), in_pool);
}

static void charge(struct account *a, uint64_t bytes, enum ledger_result want, bool by_pool)
{
	bool by;
	enum ledger_result got = account_charge(a, bytes, &by);

	if (got != want || (got != LEDGER_OK && by != by_pool))
		FAIL("charge of %" PRIu64 ": result %d by the %s", bytes, (int)got,
		     by ? "pool" : "slice");
}

static void without_a_pool(void)
{
	struct account a = {.slice = ledger_open(make("", 0, 100), 0, 1)};

	charge(&a, 100, LEDGER_OK, false);
	charge(&a, 1, LEDGER_REFUSED, false);
	check("full", &a, 100, 0);
	account_adjust(&a, 50, 20);
	check("beyond the limit", &a, 130, 0);
	account_adjust(&a, 0, UINT64_MAX);
	check("empty", &a, 0, 0);
	account_set_context(&a, 7);
	account_count_refusal(&a, false);
	if (a.slice.ledger->lane[1].entry[0].context != 7 ||
	    a.slice.ledger->lane[1].entry[0].refusals != 1)
		FAIL("context or refusals are not in the lane");
}

static void refusals_are_described(void)
{
	struct ledger *ledger = make("", 0, 100);
	struct ledger_lane *lane = &ledger->lane[1];
	struct ledger_refusal refusal = {.bytes = 90, .used = 20, .needed = 1}, last;

	if (ledger_last_refusal(ledger, 1, &last) != 0)
		FAIL("there is a refusal before the first");
	ledger_describe_refusal(ledger, 1, &refusal);
	refusal.bytes = 5;
	ledger_describe_refusal(ledger, 1, &refusal);
	if (ledger_last_refusal(ledger, 1, &last) == 0 || last.bytes != 5 || last.needed != 110)
		FAIL("the last refusal is of %" PRIu64 ", and %" PRIu64 " were needed", last.bytes,
		     last.needed);
	lane->reported = lane->described;
	if (ledger_last_refusal(ledger, 1, &last) != 0)
		FAIL("a reported refusal is there again");
	refusal.by_pool = 1;
	ledger_describe_refusal(ledger, 1, &refusal);
	if (ledger_last_refusal(ledger, 1, &last) == 0 || last.needed != 0)
		FAIL("%" PRIu64 " were needed of a pool", last.needed);
	lane->described++;
	if (ledger_last_refusal(ledger, 1, &last) != 0)
		FAIL("half a refusal is read");
}

static void in_a_pool(void)
{
	struct ledger *slice = make("", 0, 100), *pool = make("llm", 3, 60);
	int device = account_find_device(pool, uuid);
	struct account a = {.slice = ledger_open(slice, 0, 1),
	                    .pool = ledger_open(pool, (uint32_t)device, 2)};
	struct ledger_account other = ledger_open(pool, 3, 5);
	uint8_t strange[16] = {8};

	if (device != 3 || account_find_device(pool, strange) != -1)
		FAIL("the device is %d in the pool", device);
	charge(&a, 50, LEDGER_OK, false);
	check("charged", &a, 50, 50);
	charge(&a, 11, LEDGER_REFUSED, true);
	check("refused by the pool", &a, 50, 50);
	charge(&a, 51, LEDGER_REFUSED, false);
	check("refused by the slice", &a, 50, 50);
	if (ledger_charge(&other, 10) != LEDGER_OK || ledger_charge(&other, 1) != LEDGER_REFUSED)
		FAIL("another member gets what is left, and no more");
	charge(&a, 1, LEDGER_REFUSED, true);
	if (ledger_release(&other, 10) != LEDGER_OK)
		FAIL("release");
	account_adjust(&a, 0, 20);
	check("released", &a, 30, 30);
	account_adjust(&a, 45, 5);
	check("beyond the pool's limit", &a, 70, 70);
	charge(&a, 1, LEDGER_REFUSED, true);
	account_set_context(&a, 9);
	account_count_refusal(&a, true);
	account_count_refusal(&a, false);
	if (slice->lane[1].entry[0].context != 9 || pool->lane[2].entry[3].context != 9)
		FAIL("contexts are not in both lanes");
	if (slice->lane[1].entry[0].refusals != 2 || pool->lane[2].entry[3].refusals != 1)
		FAIL("refusals are not where they belong");
	account_adjust(&a, 0, UINT64_MAX);
	check("empty", &a, 0, 0);

	/* Of a pool that is closed or overwritten nothing stays in the slice. */
	pool->flags = LEDGER_CLOSED;
	charge(&a, 1, LEDGER_REFUSED, true);
	check("closed", &a, 0, 0);
	pool->flags = 0;
	pool->device[3].word.tag = UINT64_MAX;
	charge(&a, 1, LEDGER_DAMAGED, true);
	if (used_of(slice, 0) != 0)
		FAIL("a byte stays in the slice");
}

/* A process maps what it is sent: nothing else may pass for a ledger. */
static void only_a_ledger_is_valid(void)
{
	struct ledger *ledger = make("", 0, 100);
	struct ledger_account account = ledger_open(ledger, 0, 1);

	if (!ledger_valid(ledger, sizeof(*ledger)))
		FAIL("a ledger is not valid");
	if (ledger_valid(ledger, sizeof(*ledger) - 1) || ledger_valid(ledger, sizeof(*ledger) + 1))
		FAIL("a file of another size is valid");
	ledger->layout++;
	if (ledger_valid(ledger, sizeof(*ledger)))
		FAIL("another layout is valid");
	ledger->layout--;
	ledger->lanes++;
	if (ledger_valid(ledger, sizeof(*ledger)))
		FAIL("another number of lanes is valid");
	ledger->lanes--;
	ledger->magic ^= 1;
	if (ledger_valid(ledger, sizeof(*ledger)))
		FAIL("a page that is not formatted yet is valid");
	ledger->magic ^= 1;
	if (ledger_charge(&account, 7) != LEDGER_OK || ledger_release(&account, 8) != LEDGER_OK ||
	    account.held != 0 || used_of(ledger, 0) != 0)
		FAIL("more is released than was held");
}

int main(void)
{
	only_a_ledger_is_valid();
	without_a_pool();
	refusals_are_described();
	in_a_pool();
	puts("account: ok");
	return 0;
}
