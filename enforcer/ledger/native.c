/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger's code for the enforcer. It is included and not linked, so that the tree has one
 * copy of it, and the functions below can use its loads and stores.
 */
#include "native.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../interceptor/ledger.c"

enum ledger_result native_assign(struct ledger *ledger, uint32_t lane,
                                 const struct native_owner *owner)
{
	struct ledger_lane *l = &ledger->lane[lane];

	/* Raise high_lane first: a reader up to high_lane must not miss a live lane. */
	if (__atomic_load_n(&ledger->high_lane, __ATOMIC_RELAXED) < lane)
		__atomic_store_n(&ledger->high_lane, lane, __ATOMIC_RELEASE);
	l->pid = owner->pid;
	l->ns_pid = owner->ns_pid;
	l->start = owner->start;
	l->pid_ns = owner->pid_ns;
	return ledger_recycle(ledger, lane);
}

void native_live(struct ledger *ledger, uint32_t lane)
{
	/* Pairs with the acquire load of a sibling in search of dead lanes: if it sees the lane
	 * live, it sees the identity above. */
	__atomic_store_n(&ledger->lane[lane].state, LEDGER_LIVE, __ATOMIC_RELEASE);
}

void native_suspended(struct ledger *ledger, uint32_t lane)
{
	__atomic_store_n(&ledger->lane[lane].state, LEDGER_SUSPENDED, __ATOMIC_RELEASE);
}

enum ledger_result native_settle(struct ledger *ledger, uint32_t lane, uint64_t generation,
                                 uint32_t devices, uint64_t *bytes)
{
	enum ledger_result worst = LEDGER_OK;

	for (uint32_t device = 0; device < devices && device < LEDGER_DEVICES; device++) {
		enum ledger_result result =
		    ledger_settle(ledger, device, lane, generation, &bytes[device]);

		if (result > worst)
			worst = result;
	}
	return worst;
}

void native_free(struct ledger *ledger, uint32_t lane)
{
	__atomic_store_n(&ledger->lane[lane].state, LEDGER_FREE, __ATOMIC_RELEASE);
}

enum ledger_result native_device(struct ledger_account *enforcer, const uint8_t *uuid,
                                 uint64_t limit, uint64_t quota, uint64_t total,
                                 uint64_t context_bytes)
{
	struct ledger *ledger = enforcer->ledger;
	struct ledger_device *d = &ledger->device[enforcer->device];
	enum ledger_result result;

	for (unsigned i = 0; i < 16; i++)
		d->uuid[i] = uuid[i];
	store(&d->quota, quota);
	store(&d->total, total);
	store(&d->context_bytes, context_bytes);
	result = ledger_limit(enforcer, limit);
	/* The count last: devices above it are unused. */
	if (result == LEDGER_OK &&
	    __atomic_load_n(&ledger->device_count, __ATOMIC_RELAXED) <= enforcer->device)
		__atomic_store_n(&ledger->device_count, enforcer->device + 1, __ATOMIC_RELEASE);
	return result;
}

void native_context_bytes(struct ledger *ledger, uint32_t device, uint64_t bytes)
{
	store(&ledger->device[device].context_bytes, bytes);
}

void native_close(struct ledger *ledger)
{
	__atomic_fetch_or(&ledger->flags, LEDGER_CLOSED, __ATOMIC_ACQ_REL);
}

uint64_t native_held(const struct ledger *ledger, uint32_t device, uint32_t lane)
{
	const struct ledger_entry *entry = &ledger->lane[lane].entry[device];

	/* A settlement is the change after the entry's own number. A live owner writes the number
	 * before its change takes effect, so for a live owner this is true only if it made a
	 * change between the two loads. */
	for (unsigned tries = 0; tries < 1000; tries++) {
		uint64_t number = load(&entry->number);
		bool settled = took_effect(ledger, device, lane, number + 1);

		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (load(&entry->number) == number)
			return settled ? 0 : ledger_held(ledger, device, lane);
	}
	return ledger_held(ledger, device, lane);
}

struct native_sums native_sums(const struct ledger *ledger, uint32_t device, const uint8_t *live,
                               uint32_t lanes)
{
	const struct ledger_device *d = &ledger->device[device];
	uint64_t tag = load(&d->word.tag);
	struct native_sums sums = {.used = load(&d->word.used),
	                           .allocations = load(&d->retired_allocations),
	                           .refusals = load(&d->retired_refusals)};

	for (uint32_t lane = 0; lane < lanes && lane < LEDGER_LANES; lane++) {
		const struct ledger_entry *entry = &ledger->lane[lane].entry[device];
		uint64_t held, context;

		/* Counts of a dead process stay in its lane until the next process gets it, and
		 * then move to `retired`: the sum never decreases. */
		sums.allocations += ledger_allocations(entry);
		sums.refusals += load(&entry->refusals);
		if (!live[lane])
			continue;
		held = native_held(ledger, device, lane);
		sums.held += held;
		/* The lane of a dead process keeps this value after a sibling has settled it. */
		context = load(&entry->context);
		sums.context += context < held ? context : held;
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	sums.quiet = load(&d->word.tag) == tag;
	return sums;
}

uint8_t native_want(struct ledger *ledger, uint32_t lane, enum ledger_place place)
{
	struct ledger_move *move = &ledger->lane[lane].move;
	uint8_t was = __atomic_load_n(&move->want, __ATOMIC_RELAXED);
	uint8_t want = ledger_want(was, place);

	__atomic_store_n(&move->want, want, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, move, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return want;
}
