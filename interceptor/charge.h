/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process holds on one device, in one ledger or in two: that of its slice, and that of the
 * pool of slices that has the device, if the slice is a member of one. (Not one of the driver's
 * pools of memory: pool.h.) Hooks charge and release through this, and do not know of pools.
 *
 * What holds beside the promises of ledger.h, whatever dies between any two instructions
 * (interceptor/model/pool.pml is the machine-checked form of it):
 *
 *   - neither ledger is ever over its limit: each charge asks the limit of the ledger that it
 *     changes;
 *   - a lane of a pool never holds more than the lane of the same process in its slice: the slice
 *     is charged first and given back last. A process that dies between the two is settled in each
 *     ledger by what it held there;
 *   - a request is refused only if it did not fit in one of the two at some instant of the call.
 *     What was charged to the slice and is given back since the pool refused is, for the others, of
 *     the same kind as a charge that is given back since the driver refused: it was there.
 */
#ifndef GPUSLICE_CHARGE_H
#define GPUSLICE_CHARGE_H

#include "ledger.h"

/* One device's accounts. Who owns them serialises its threads, as for a ledger_account. */
struct account {
	struct ledger_account slice;
	struct ledger_account pool; /* `ledger` is NULL for a slice that is in no pool */
};

/* The index of the device of that UUID in a ledger, or -1. */
int account_find_device(const struct ledger *ledger, const uint8_t uuid[16]);

/* The part of account_charge() that only members of a pool come to: the slice is charged. */
enum ledger_result account_charge_pool(struct account *account, uint64_t bytes);

/*
 * Charge `bytes` in both ledgers or in none. *by_pool says, of any result but LEDGER_OK, whose it
 * is.
 */
static inline enum ledger_result account_charge(struct account *account, uint64_t bytes,
                                                bool *by_pool)
{
	enum ledger_result result = ledger_charge(&account->slice, bytes);

	*by_pool = false;
	if (__builtin_expect(!account->pool.ledger, 1) || result != LEDGER_OK)
		return result;
	*by_pool = true;
	return account_charge_pool(account, bytes);
}

/* Add `more` and take off `less`, without asking a limit; saturates at 0. */
void account_adjust(struct account *account, uint64_t more, uint64_t less);

/* Set how much of what is held are contexts. */
void account_set_context(const struct account *account, uint64_t bytes);

/* Count a refusal; that it was the pool's is counted there, too. */
void account_count_refusal(const struct account *account, bool by_pool);

#endif
