/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process's charges on one device: in its slice's ledger, and in the ledger of the slice's pool
 * if that has the device. (Driver pools are in pool.h.) Hooks know nothing of pools of slices.
 *
 * These invariants add to those of ledger.h, and hold if a process dies between any two
 * instructions (interceptor/model/pool.pml checks them):
 *
 *   - neither ledger exceeds its limit: a charge checks the limit of each ledger that it changes;
 *   - a process never holds more in the pool than in its slice: the slice is charged first and
 *     released last. A process that dies in between is settled in each ledger by its lane there;
 *   - a request is refused only if it did not fit in one of the two at some instant of the call.
 *     For other processes, a slice's charge that is released because the pool refused is like one
 *     that is released because the driver failed.
 */
#ifndef GPUSLICE_CHARGE_H
#define GPUSLICE_CHARGE_H

#include "ledger.h"

/* The owner of these accounts serialises its threads, as for a ledger_account. */
struct account {
	struct ledger_account slice;
	struct ledger_account pool; /* `ledger` is NULL for a slice without a pool */
};

/* Return a device's index, or -1 if the ledger does not have it. */
int account_find_device(const struct ledger *ledger, const uint8_t uuid[16]);

/* Charge the pool, after the slice. On failure, release the slice's charge. */
enum ledger_result account_charge_pool(struct account *account, uint64_t bytes);

/* Charge both ledgers or neither. On an error, *by_pool is whether it is the pool's. */
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

/* Add `more` and subtract `less`, without checking a limit; saturates at 0. */
void account_adjust(struct account *account, uint64_t more, uint64_t less);

void account_set_context(const struct account *account, uint64_t bytes);

/* Count a refusal in the slice, and in the pool if the pool refused. */
void account_count_refusal(const struct account *account, bool by_pool);

#endif
