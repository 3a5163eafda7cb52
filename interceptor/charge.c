/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include <string.h>

int account_find_device(const struct ledger *ledger, const uint8_t uuid[16])
{
	uint32_t count = __atomic_load_n(&ledger->device_count, __ATOMIC_ACQUIRE);

	for (uint32_t i = 0; i < count && i < LEDGER_DEVICES; i++) {
		if (memcmp(ledger->device[i].uuid, uuid, 16) == 0)
			return (int)i;
	}
	return -1;
}

enum ledger_result account_charge_pool(struct account *account, uint64_t bytes)
{
	enum ledger_result result = ledger_charge(&account->pool, bytes);

	if (result != LEDGER_OK)
		(void)ledger_release(&account->slice, bytes);
	return result;
}

static void adjust(struct ledger_account *account, uint64_t more, uint64_t less)
{
	uint64_t held = account->held + more;

	(void)ledger_set(account, held - (less < held ? less : held));
}

void account_adjust(struct account *account, uint64_t more, uint64_t less)
{
	if (account->pool.ledger && less > more)
		adjust(&account->pool, more, less);
	adjust(&account->slice, more, less);
	if (account->pool.ledger && less <= more)
		adjust(&account->pool, more, less);
}

void account_set_context(const struct account *account, uint64_t bytes)
{
	ledger_set_context(&account->slice, bytes);
	if (account->pool.ledger)
		ledger_set_context(&account->pool, bytes);
}

void account_count_refusal(const struct account *account, bool by_pool)
{
	ledger_count_refusal(&account->slice);
	if (by_pool)
		ledger_count_refusal(&account->pool);
}
