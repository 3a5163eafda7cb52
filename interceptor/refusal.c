/* SPDX-License-Identifier: Apache-2.0 */
#include "refusal.h"

#include "say.h"
#include "view.h"

#include <stdio.h>
#include <string.h>

/* The most sums of the lanes, if the device's word changes each time. */
#define LOOKS 8

/*
 * A refusal in bytes, as of one instant. own + siblings + overhead is the device's `used`. As in
 * `gpuslice ps`, overhead is what the enforcer charged in its lane, and the contexts of all
 * processes; own and siblings are the rest. These and the limit exclude the charges of checkpointed
 * processes.
 */
struct refusal {
	uint64_t limit, own, siblings;
	struct ledger_refusal described;
};

/* Bytes of the other lanes, beside those of their programs. */
struct others {
	uint64_t contexts; /* of living processes, as far as they are charged */
	uint64_t away;     /* of checkpointed processes: charged, and part of the limit */
};

static struct others look_at_others(const struct ledger_account *account)
{
	const struct ledger *ledger = account->ledger;
	uint32_t device = account->device;
	struct others others = {0};

	for (uint32_t lane = 1; lane < ledger_lanes(ledger); lane++) {
		const struct ledger_lane *l = &ledger->lane[lane];
		uint32_t state = __atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
		uint64_t context = __atomic_load_n(&l->entry[device].context, __ATOMIC_RELAXED);

		if (lane == account->lane)
			continue;
		/* A settled lane holds nothing, but its `context` is left in the entry. */
		if (state == LEDGER_LIVE && context)
			others.contexts += least(context, ledger_held(ledger, device, lane));
		else if (state == LEDGER_SUSPENDED)
			others.away += ledger_held(ledger, device, lane);
	}
	return others;
}

static struct refusal look(const struct process *process, uint32_t device, bool by_pool)
{
	const struct held *held = &process->held[device];
	const struct ledger_account *account = by_pool ? &held->account.pool : &held->account.slice;
	const struct ledger_device *d = &account->ledger->device[account->device];
	uint64_t used = 0, limit = 0, overhead = 0, own;

	/* If the word does not change while the lanes are summed, the sums are of one instant. Else
	 * they are nearly so, and are cut to add up to `used`. */
	for (unsigned looks = 0; looks < LOOKS; looks++) {
		uint64_t tag = __atomic_load_n(&d->word.tag, __ATOMIC_ACQUIRE);
		struct others others = look_at_others(account);

		used = __atomic_load_n(&d->word.used, __ATOMIC_ACQUIRE);
		limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
		overhead = ledger_held(account->ledger, account->device, 0) + others.contexts +
		           held->overhead;
		used -= least(others.away, used);
		limit -= least(others.away, limit);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&d->word.tag, __ATOMIC_RELAXED) == tag)
			break;
	}
	overhead = least(overhead, used);
	own = least(account->held - least(account->held, held->overhead), used - overhead);
	return (struct refusal){
	    .limit = limit,
	    .own = own,
	    .siblings = used - overhead - own,
	    .described = {.used = used, .overhead = overhead},
	};
}

/* A number of bytes, as in "3221225472 bytes (3.0 GiB)". */
struct figure {
	char text[48];
};

static struct figure figure(uint64_t bytes)
{
	static const char units[] = "KMGTPE";
	struct figure f;
	unsigned unit = 0;

	while (unit < 6 && bytes >> (10 * (unit + 1)))
		unit++;
	if (unit == 0) {
		snprintf(f.text, sizeof(f.text), "%llu bytes", (unsigned long long)bytes);
	} else {
		unsigned shift = 10 * unit;
		/* Cut the tenths off: a request that does not fit must not look as if it did. */
		uint64_t tenths = ((bytes >> (shift - 10)) & 1023) * 10 / 1024;

		snprintf(f.text, sizeof(f.text), "%llu bytes (%llu.%llu %ciB)",
		         (unsigned long long)bytes, (unsigned long long)(bytes >> shift),
		         (unsigned long long)tenths, units[unit - 1]);
	}
	return f;
}

/* " of pool NAME", or nothing. Any member can overwrite the name, so other characters than a name's
 * are printed as '?'. */
struct pool_name {
	char text[sizeof(((struct ledger *)0)->pool) + 16];
};

static struct pool_name pool_name(const struct ledger *pool)
{
	struct pool_name name = {.text = ""};
	size_t length;

	if (!pool)
		return name;
	length = strlen(strcpy(name.text, " of pool "));
	for (size_t i = 0; i < sizeof(pool->pool) && pool->pool[i]; i++) {
		char c = pool->pool[i];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
		             (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';

		name.text[length + i] = c;
		if (!plain)
			name.text[length + i] = '?';
	}
	return name;
}

static void say(const struct process *process, const struct refusal *refusal)
{
	const struct ledger_refusal *r = &refusal->described;
	const uint8_t *u = process->ledger->device[r->device].uuid;
	const struct ledger *pool =
	    r->by_pool ? process->held[r->device].account.pool.ledger : NULL;

	say_debug("refused %s of %s on "
	          "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x: "
	          "limit%s %s, used by this process %s, by siblings %s, overhead %s",
	          ledger_call_name(r->call), figure(r->bytes).text, u[0], u[1], u[2], u[3], u[4],
	          u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15],
	          pool_name(pool).text, figure(refusal->limit).text, figure(refusal->own).text,
	          figure(refusal->siblings).text, figure(r->overhead).text);
}

void refusal_report(struct process *process, uint32_t device, uint64_t bytes, bool by_pool,
                    enum ledger_call call)
{
	struct refusal refusal;

	/* The process charges nothing between the look and the description. */
	lock_take(&process->account_lock);
	refusal = look(process, device, by_pool);
	refusal.described.bytes = bytes;
	refusal.described.device = device;
	refusal.described.call = call;
	refusal.described.by_pool = by_pool;
	ledger_describe_refusal(process->ledger, process->lane, &refusal.described);
	account_count_refusal(&process->held[device].account, by_pool);
	lock_give(&process->account_lock);
	if (say_wants_debug())
		say(process, &refusal);
}
