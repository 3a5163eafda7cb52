/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many processes compete for the last byte, and die at random.
 *
 * The parent is the enforcer: it kills processes with SIGKILL at any moment, settles their lanes
 * and gives them to new processes, while refused siblings settle too. Device 0 is tight: its peak,
 * which the ledger keeps exactly, may never exceed the limit. Device 1 has room for all: a refusal
 * there is wrong. At halts between two operations `used` must be the sum of what the living hold by
 * their own records.
 *
 *   stress [-n PROCESSES] [-t SECONDS] [-s SEED] [-l]      -l: the limit of device 0 changes, too
 */
#define _GNU_SOURCE
#include "crowd.h"

static struct ledger *ledger;

static void work(uint32_t lane, uint64_t seed)
{
	struct worker *me = &control->worker[lane];
	struct ledger_account account[DEVICES];
	uint64_t random = seed | 1;

	die_with_parent();
	while (!__atomic_load_n(&me->go, __ATOMIC_ACQUIRE))
		sched_yield();
	for (uint32_t device = 0; device < DEVICES; device++) {
		account[device] = ledger_open(ledger, device, lane);
		if (account[device].held != 0)
			WRONG("lane %u inherits %" PRIu64 " bytes", lane, account[device].held);
	}
	while (!__atomic_load_n(&control->quit, __ATOMIC_ACQUIRE)) {
		uint32_t device = next_random(&random) % DEVICES;
		struct ledger_account *a = &account[device];
		uint64_t size = 1 + next_random(&random) % 300, held = a->held;
		enum ledger_result result;

		if (!may_continue(me))
			continue; /* a halt came between the two */

		switch (next_random(&random) % 8) {
		default:
			if (held + size > MOST_HELD) {
				result = ledger_release(a, held);
				held = 0;
				break;
			}
			result = ledger_charge(a, size);
			if (result == LEDGER_OK)
				held += size;
			if (result != LEDGER_REFUSED)
				break;
			me->refusals[0]++;
			ledger_count_refusal(a);
			if (device == ROOMY)
				WRONG("lane %u: %" PRIu64 " bytes refused, though there is room",
				      lane, size);
			settle_siblings(me, a);
			result = LEDGER_OK;
			break;
		case 0:
		case 1:
			result = ledger_release(a, size);
			held -= size < held ? size : held;
			break;
		case 2:
			/* Ignores the limit; on the tight device only downwards. */
			held = device == ROOMY ? size : held / 2;
			result = ledger_set(a, held);
			break;
		}
		if (result != LEDGER_OK)
			WRONG("lane %u: result %d", lane, (int)result);
		if (a->held != held || ledger_held(ledger, device, lane) != held)
			WRONG("lane %u: holds %" PRIu64 ", the account says %" PRIu64
			      ", others see %" PRIu64,
			      lane, held, a->held, ledger_held(ledger, device, lane));
		__atomic_store_n(&me->held[device], held, __ATOMIC_RELEASE);
		me->operations++;
	}
	_exit(0);
}

static void start(uint32_t lane)
{
	spawn(lane);
	give(ledger, lane);
	__atomic_store_n(&control->worker[lane].go, 1, __ATOMIC_RELEASE);
}

/* Waits for the siblings to settle it, or is first. */
static void settle(uint32_t lane)
{
	delay_settling();
	settle_in(ledger, lane);
}

static void balance(uint32_t lanes, const struct ledger_account *enforcer)
{
	halt(lanes);
	for (uint32_t device = 0; device < DEVICES; device++) {
		uint64_t sum = enforcer[device].held;

		for (uint32_t lane = 1; lane <= lanes; lane++) {
			uint64_t held = control->worker[lane].held[device];

			if (ledger_held(ledger, device, lane) != held)
				FAIL("device %u: lane %u holds %" PRIu64
				     ", the ledger says %" PRIu64,
				     device, lane, held, ledger_held(ledger, device, lane));
			sum += held;
		}
		if (used_of(ledger, device) != sum)
			FAIL("device %u: used is %" PRIu64 ", the living hold %" PRIu64, device,
			     used_of(ledger, device), sum);
	}
	__atomic_store_n(&control->pause, 0, __ATOMIC_SEQ_CST);
}

static void alone(void)
{
	struct ledger_account a;
	uint64_t limit = ledger->device[TIGHT].limit;

	if (ledger_recycle(ledger, 1) != LEDGER_OK)
		FAIL("recycle");
	a = ledger_open(ledger, TIGHT, 1);
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t room = limit - used_of(ledger, TIGHT);
		uint64_t size = next_random(&random_state) % (limit / 3);

		if (next_random(&random_state) % 3 == 0) {
			ledger_release(&a, size);
			continue;
		}
		if (next_random(&random_state) % 4 == 0)
			size =
			    room + next_random(&random_state) % 2; /* the last byte, or one more */
		if (ledger_charge(&a, size) != (size <= room ? LEDGER_OK : LEDGER_REFUSED))
			FAIL("alone: charge of %" PRIu64 " with %" PRIu64 " free", size, room);
	}
	if (ledger_release(&a, UINT64_MAX) != LEDGER_OK)
		FAIL("release");
}

/* Once ledger_limit has returned, `used` may be above the limit, but cannot rise there. */
static void change_limit(struct ledger_account *enforcer, uint64_t full)
{
	uint64_t limit = full / 4 + next_random(&random_state) % (full * 3 / 4);
	uint64_t seen, now;

	if (ledger_limit(&enforcer[TIGHT], limit) != LEDGER_OK)
		FAIL("ledger_limit");
	seen = used_of(ledger, TIGHT);
	for (unsigned i = 0; i < 20000; i++, seen = now) {
		now = used_of(ledger, TIGHT);
		if (now > limit && now > seen)
			FAIL("used rose from %" PRIu64 " to %" PRIu64
			     " after the limit became %" PRIu64,
			     seen, now, limit);
	}
}

int main(int argc, char **argv)
{
	struct ledger_account enforcer[DEVICES];
	uint32_t lanes = 64;
	uint64_t seconds = 5, seed = (uint64_t)getpid() ^ nanoseconds(), limit, until;
	uint64_t operations = 0, refusals = 0, recovered = 0;
	unsigned kills = 0, pauses = 0, limits = 0;
	bool changing = false;
	uint8_t name[16] = {1};
	int option;

	while ((option = getopt(argc, argv, "n:t:s:l")) != -1) {
		if (option == 'n')
			lanes = (uint32_t)strtoul(optarg, NULL, 10);
		else if (option == 't')
			seconds = strtoull(optarg, NULL, 10);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else if (option == 'l')
			changing = true;
		else
			return 2;
	}
	if (lanes < 1 || lanes > LEDGER_SLOTS)
		return 2;
	random_state = seed | 1;
	ledger = shared_memory(sizeof(*ledger));
	control = shared_memory(sizeof(*control));
	ledger_format(ledger, name);
	limit = lanes * (uint64_t)MOST_HELD / 4;
	for (uint32_t device = 0; device < DEVICES; device++) {
		enforcer[device] = ledger_open(ledger, device, 0);
		if (ledger_set(&enforcer[device], 11) != LEDGER_OK ||
		    ledger_limit(&enforcer[device],
		                 device == TIGHT ? limit : 11 + lanes * (uint64_t)MOST_HELD) !=
		        LEDGER_OK)
			FAIL("the enforcer cannot begin");
	}
	alone();

	ledger->high_lane = lanes;
	for (uint32_t lane = 1; lane <= lanes; lane++)
		start(lane);
	until = nanoseconds() + seconds * 1000000000ull;
	while (nanoseconds() < until) {
		for (unsigned i = 0; i < 4; i++) {
			kills += kill_some(lanes);
			if (changing) {
				change_limit(enforcer, limit);
				limits++;
			}
		}
		balance(lanes, enforcer);
		pauses++;
		for (uint32_t device = 0; device < DEVICES; device++)
			if (ledger->device[device].peak >
			    (device == TIGHT ? limit : 11 + lanes * MOST_HELD))
				FAIL("device %u: used was %" PRIu64 " once, above the limit",
				     device, ledger->device[device].peak);
	}

	/* All die at once; all bytes are released. */
	for (uint32_t lane = 1; lane <= lanes; lane++)
		kill(pid_of[lane], SIGKILL);
	for (uint32_t lane = 1; lane <= lanes; lane++) {
		waitpid(pid_of[lane], NULL, 0);
		settle(lane);
		operations += control->worker[lane].operations;
		refusals += control->worker[lane].refusals[0];
		recovered += control->worker[lane].recovered;
	}
	if (control->failed)
		FAIL("a process has found a fault");
	for (uint32_t device = 0; device < DEVICES; device++)
		if (used_of(ledger, device) != 11)
			FAIL("device %u: %" PRIu64 " left when all are dead, not 11", device,
			     used_of(ledger, device));
	printf("stress: ok: %u processes, %" PRIu64 " operations, %" PRIu64
	       " refused, %u killed, %" PRIu64
	       " bytes settled by siblings, %u balances, %u limits, "
	       "peak %" PRIu64 " of %" PRIu64 ", seed %" PRIu64 "\n",
	       lanes, operations, refusals, kills, recovered, pauses, limits,
	       ledger->device[TIGHT].peak, limit, seed);
	return 0;
}
