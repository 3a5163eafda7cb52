/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a charge and its release with 1, 64, 1024 and 4096 lanes that hold bytes: by one of
 * them, and by all in turn. Only prints figures, since a busy machine would fail any bound. */
#define _GNU_SOURCE
#include "check.h"

#define ROUNDS 400000u

static struct ledger_account account[LEDGER_LANES];

static double cost(uint32_t lanes, uint32_t active)
{
	uint64_t best = UINT64_MAX;

	for (unsigned attempt = 0; attempt < 3; attempt++) {
		uint64_t start = nanoseconds(), took;

		for (uint32_t i = 0, lane = 1; i < ROUNDS; i++, lane = lane % active + 1)
			if (ledger_charge(&account[lane], 4096) != LEDGER_OK ||
			    ledger_release(&account[lane], 4096) != LEDGER_OK)
				FAIL("flat: %u lanes: a charge failed", lanes);
		took = nanoseconds() - start;
		if (took < best)
			best = took;
	}
	return (double)best / ROUNDS;
}

int main(void)
{
	static const uint32_t counts[] = {1, 64, 1024, LEDGER_SLOTS};
	struct ledger *ledger = shared_memory(sizeof(*ledger));
	struct ledger_account enforcer;
	uint8_t name[16] = {1};
	uint32_t lanes = 0;
	double one = 0;

	ledger_format(ledger, name);
	enforcer = ledger_open(ledger, 0, 0);
	ledger_limit(&enforcer, LEDGER_NO_LIMIT);
	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		double single, all;

		while (lanes < counts[i]) {
			lanes++;
			if (ledger_recycle(ledger, lanes) != LEDGER_OK)
				FAIL("flat: lane %u cannot be given out", lanes);
			account[lanes] = ledger_open(ledger, 0, lanes);
			if (ledger_charge(&account[lanes], 1) != LEDGER_OK)
				FAIL("flat: lane %u cannot charge", lanes);
		}
		single = cost(lanes, 1);
		all = cost(lanes, lanes);
		if (i == 0)
			one = single;
		printf("flat: %4u lanes: charge and release %.1f ns by one (x%.2f), %.1f ns by all "
		       "in turn "
		       "(x%.2f)\n",
		       lanes, single, single / one, all, all / one);
	}
	return 0;
}
