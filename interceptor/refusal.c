/* SPDX-License-Identifier: Apache-2.0 */
#include "refusal.h"

#include "attach_client.h"
#include "say.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* How often the lanes are summed again because the device's word changed meanwhile. */
#define LOOKS 8

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Is there room for one more in this second? Called with account_lock held. */
static bool may_tell(struct process *process)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	if (process->told_second != (uint64_t)t.tv_sec) {
		process->told_second = (uint64_t)t.tv_sec;
		process->told = 0;
	}
	return process->told++ < REFUSALS_TOLD;
}

/* What the other lanes have, beside what they hold for their programs. */
struct others {
	uint64_t contexts; /* of processes that are alive, as far as they are charged */
	uint64_t away;     /* of checkpointed ones: charged, and allowed for in the limit */
};

static struct others look_at_others(const struct ledger_account *account)
{
	const struct ledger *ledger = account->ledger;
	uint32_t device = account->device;
	uint32_t high = __atomic_load_n(&ledger->high_lane, __ATOMIC_ACQUIRE);
	struct others others = {0};

	for (uint32_t lane = 1; lane <= high && lane < LEDGER_LANES; lane++) {
		const struct ledger_lane *l = &ledger->lane[lane];
		uint32_t state = __atomic_load_n(&l->state, __ATOMIC_ACQUIRE);
		uint64_t context = __atomic_load_n(&l->entry[device].context, __ATOMIC_RELAXED);

		if (lane == account->lane)
			continue;
		/* One that was settled has left its figure in the entry, and holds nothing. */
		if (state == LEDGER_LIVE && context)
			others.contexts += least(context, ledger_held(ledger, device, lane));
		else if (state == LEDGER_SUSPENDED)
			others.away += ledger_held(ledger, device, lane);
	}
	return others;
}

struct refusal refusal_look(struct process *process, uint32_t device, uint64_t bytes, bool by_pool)
{
	const struct ledger_account *account =
	    by_pool ? &process->held[device].account.pool : &process->held[device].account.slice;
	const struct ledger_device *d = &account->ledger->device[account->device];
	struct refusal refusal = {
	    .say = say_wants_debug(), .tell = may_tell(process), .by_pool = by_pool};
	uint64_t used = 0, limit = 0, overhead = 0, own = account->held;

	if (!refusal.say && !refusal.tell)
		return refusal;
	own -= least(own, process->held[device].overhead);
	/* One instant, if the word stands still while the lanes are summed; else as near to one as
	 * it gets, and the parts are cut so that they never add up to anything but `used`. */
	for (unsigned looks = 0; looks < LOOKS; looks++) {
		uint64_t tag = __atomic_load_n(&d->word.tag, __ATOMIC_ACQUIRE);
		struct others others = look_at_others(account);

		used = __atomic_load_n(&d->word.used, __ATOMIC_ACQUIRE);
		limit = __atomic_load_n(&d->limit, __ATOMIC_RELAXED);
		overhead = ledger_held(account->ledger, account->device, 0) + others.contexts +
		           process->held[device].overhead;
		used -= least(others.away, used);
		limit -= least(others.away, limit);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&d->word.tag, __ATOMIC_RELAXED) == tag)
			break;
	}
	refusal.bytes = bytes;
	refusal.limit = limit;
	refusal.overhead = least(overhead, used);
	refusal.own = least(own, used - refusal.overhead);
	refusal.siblings = used - refusal.overhead - refusal.own;
	return refusal;
}

/* Bytes for people, as in "3221225472 bytes (3.0 GiB)". */
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
		/* Tenths are cut off, so that what does not fit never looks as if it did. */
		uint64_t tenths = ((bytes >> (shift - 10)) & 1023) * 10 / 1024;

		snprintf(f.text, sizeof(f.text), "%llu bytes (%llu.%llu %ciB)",
		         (unsigned long long)bytes, (unsigned long long)(bytes >> shift),
		         (unsigned long long)tenths, units[unit - 1]);
	}
	return f;
}

/* " of pool NAME", or nothing. Any member could have written the name: what is no letter of one is
 * not printed. */
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

static void say_refusal(const uint8_t *u, const struct refusal *r, const struct ledger *pool,
                        const char *what)
{
	say_debug("refused %s of %s on "
	          "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x: "
	          "limit%s %s, used by this process %s, by siblings %s, overhead %s",
	          what, figure(r->bytes).text, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8],
	          u[9], u[10], u[11], u[12], u[13], u[14], u[15], pool_name(pool).text,
	          figure(r->limit).text, figure(r->own).text, figure(r->siblings).text,
	          figure(r->overhead).text);
}

void refusal_report(struct process *process, uint32_t device, const struct refusal *refusal,
                    enum attach_call call)
{
	if (refusal->say)
		say_refusal(process->ledger->device[device].uuid, refusal,
		            refusal->by_pool ? process->held[device].account.pool.ledger : NULL,
		            attach_call_name(call));
	if (refusal->tell) {
		struct attach_request request = {
		    .op = ATTACH_OP_REFUSED,
		    .device = device,
		    .bytes = refusal->bytes,
		    .used = refusal->own + refusal->siblings + refusal->overhead,
		    .overhead = refusal->overhead,
		    .call = call,
		    .pool = refusal->by_pool,
		};

		tell_enforcer(&request);
	}
}
