/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of two slices compete for the last byte of their common pool, and die at random.
 *
 * As stress.c, with three pages: the parent is the enforcer, kills processes with SIGKILL at any
 * moment and settles their lanes in both ledgers, one some time after the other; refused siblings
 * settle in their ledgers, too. Device 0 is tight: the slices together have more than the pool, so
 * both limits refuse, and no peak may exceed its limit. Device 1 has room for all: a refusal there
 * is wrong. The devices' order differs between the pool and the slices. At halts each ledger's
 * `used` must be the sum of what the living hold.
 *
 *   pool [-n PROCESSES] [-t SECONDS] [-s SEED]
 */
#define _GNU_SOURCE
#include "charge.h"
#include "crowd.h"

enum { SLICES = 2 };

#define MOST 256u
#define PATIENCE (120 * 1000000000ull) /* to see each kind of refusal */

static struct ledger *slices[SLICES], *pool;
static struct ledger *slice_of(uint32_t process)
{
	return slices[process % SLICES];
}

static void work(uint32_t number, uint64_t seed)
{
	struct worker *me = &control->worker[number];
	struct account account[DEVICES];
	uint64_t random = seed | 1;

	die_with_parent();
	while (!__atomic_load_n(&me->go, __ATOMIC_ACQUIRE))
		sched_yield();
	for (uint32_t device = 0; device < DEVICES; device++) {
		int in_pool = account_find_device(pool, slice_of(number)->device[device].uuid);

		if (in_pool != (int)(DEVICES - 1 - device))
			WRONG("device %u is %d in the pool", device, in_pool);
		account[device].slice = ledger_open(slice_of(number), device, number);
		account[device].pool = ledger_open(pool, (uint32_t)in_pool, number);
		if (account[device].slice.held || account[device].pool.held)
			WRONG("process %u inherits bytes", number);
	}
	while (!__atomic_load_n(&control->quit, __ATOMIC_ACQUIRE)) {
		uint32_t device = next_random(&random) % DEVICES;
		struct account *a = &account[device];
		uint64_t size = 1 + next_random(&random) % 300, held = a->slice.held;
		enum ledger_result result;
		bool by_pool;

		if (!may_continue(me))
			continue; /* a halt came between the two */

		switch (next_random(&random) % 8) {
		default:
			if (held + size > MOST_HELD) {
				account_adjust(a, 0, held);
				held = 0;
				break;
			}
			result = account_charge(a, size, &by_pool);
			if (result == LEDGER_OK) {
				held += size;
				break;
			}
			if (result != LEDGER_REFUSED)
				WRONG("process %u: result %d", number, (int)result);
			me->refusals[by_pool]++;
			account_count_refusal(a, by_pool);
			if (device == ROOMY)
				WRONG("process %u: %" PRIu64 " refused, though there is room",
				      number, size);
			settle_siblings(me, &a->slice);
			settle_siblings(me, &a->pool);
			break;
		case 0:
		case 1:
			account_adjust(a, 0, size);
			held -= size < held ? size : held;
			break;
		case 2: /* ignores the limit; on the tight device only downwards */
			if (device == ROOMY && held + size <= MOST_HELD) {
				account_adjust(a, size, 0);
				held += size;
			} else {
				account_adjust(a, size, 2 * size);
				held -= size < held ? size : held;
			}
			break;
		}
		if (a->slice.held != held || a->pool.held != held ||
		    ledger_held(a->slice.ledger, a->slice.device, number) != held ||
		    ledger_held(pool, a->pool.device, number) != held)
			WRONG("process %u: holds %" PRIu64 ", the accounts say %" PRIu64
			      " and %" PRIu64,
			      number, held, a->slice.held, a->pool.held);
		__atomic_store_n(&me->held[device], held, __ATOMIC_RELEASE);
		me->operations++;
	}
	_exit(0);
}

static void start(uint32_t number)
{
	spawn(number);
	give(slice_of(number), number);
	give(pool, number);
	__atomic_store_n(&control->worker[number].go, 1, __ATOMIC_RELEASE);
}

/* In either order, while others continue. */
static void settle(uint32_t number)
{
	bool pool_first = next_random(&random_state) % 2;

	settle_in(pool_first ? pool : slice_of(number), number);
	delay_settling();
	settle_in(pool_first ? slice_of(number) : pool, number);
}

static void check_used(const char *what, const struct ledger *ledger, uint32_t device, uint64_t sum)
{
	if (used_of(ledger, device) != sum)
		FAIL("%s, device %u: used is %" PRIu64 ", the living hold %" PRIu64, what, device,
		     used_of(ledger, device), sum);
}

static void balance(uint32_t processes)
{
	halt(processes);
	for (uint32_t device = 0; device < DEVICES; device++) {
		uint64_t sum[SLICES] = {0};

		for (uint32_t i = 1; i <= processes; i++)
			sum[i % SLICES] += control->worker[i].held[device];
		for (uint32_t s = 0; s < SLICES; s++)
			check_used("a slice", slices[s], device, sum[s]);
		check_used("the pool", pool, DEVICES - 1 - device, sum[0] + sum[1]);
	}
	__atomic_store_n(&control->pause, 0, __ATOMIC_SEQ_CST);
}

static struct ledger *make(uint8_t name, uint64_t tight, bool reversed)
{
	struct ledger *ledger = shared_memory(sizeof(*ledger));
	uint8_t random_name[16] = {name};

	ledger_format(ledger, random_name);
	for (uint32_t i = 0; i < DEVICES; i++) {
		uint32_t device = reversed ? DEVICES - 1 - i : i;
		struct ledger_account enforcer = ledger_open(ledger, device, 0);

		ledger->device[device].uuid[0] = (uint8_t)(1 + i);
		if (ledger_limit(&enforcer, i == TIGHT ? tight : MOST * (uint64_t)MOST_HELD) !=
		    LEDGER_OK)
			FAIL("the enforcer cannot begin");
	}
	ledger->device_count = DEVICES;
	return ledger;
}

static void check_peak(const char *what, const struct ledger *ledger, uint32_t device)
{
	if (ledger->device[device].peak > ledger->device[device].limit)
		FAIL("%s, device %u: used was %" PRIu64 " once, above the limit of %" PRIu64, what,
		     device, ledger->device[device].peak, ledger->device[device].limit);
}

static bool refused(uint32_t processes)
{
	bool seen[2] = {false, false};

	for (uint32_t i = 1; i <= processes; i++)
		for (int by_pool = 0; by_pool < 2; by_pool++)
			if (__atomic_load_n(&control->worker[i].refusals[by_pool],
			                    __ATOMIC_RELAXED))
				seen[by_pool] = true;
	return seen[0] && seen[1];
}

int main(int argc, char **argv)
{
	uint32_t processes = 64;
	uint64_t seconds = 5, seed = (uint64_t)getpid() ^ nanoseconds(), limit, until;
	uint64_t operations = 0, by_slice = 0, by_pool = 0, recovered = 0;
	unsigned kills = 0, pauses = 0;
	int option;

	while ((option = getopt(argc, argv, "n:t:s:")) != -1) {
		if (option == 'n')
			processes = (uint32_t)strtoul(optarg, NULL, 10);
		else if (option == 't')
			seconds = strtoull(optarg, NULL, 10);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	if (processes < SLICES || processes > MOST)
		return 2;
	random_state = seed | 1;
	control = shared_memory(sizeof(*control));
	/* About half of the demand, and slices with a slightly larger sum: both refuse. */
	limit = processes * (uint64_t)MOST_HELD / 4;
	pool = make(1, limit, true);
	for (uint32_t s = 0; s < SLICES; s++)
		slices[s] = make((uint8_t)(2 + s), limit * 17 / 32, false);
	for (uint32_t s = 0; s < SLICES; s++)
		slices[s]->high_lane = processes;
	pool->high_lane = processes;
	for (uint32_t i = 1; i <= processes; i++)
		start(i);
	until = nanoseconds() + seconds * 1000000000ull;
	while (nanoseconds() < until || (!refused(processes) && nanoseconds() < until + PATIENCE)) {
		for (unsigned i = 0; i < 4; i++)
			kills += kill_some(processes);
		balance(processes);
		pauses++;
		for (uint32_t device = 0; device < DEVICES; device++) {
			check_peak("the pool", pool, device);
			for (uint32_t s = 0; s < SLICES; s++)
				check_peak("a slice", slices[s], device);
		}
	}

	/* All die at once; all bytes are released. */
	for (uint32_t i = 1; i <= processes; i++)
		kill(pid_of[i], SIGKILL);
	for (uint32_t i = 1; i <= processes; i++) {
		waitpid(pid_of[i], NULL, 0);
		settle(i);
		operations += control->worker[i].operations;
		by_slice += control->worker[i].refusals[0];
		by_pool += control->worker[i].refusals[1];
		recovered += control->worker[i].recovered;
	}
	if (control->failed)
		FAIL("a process has found a fault");
	for (uint32_t device = 0; device < DEVICES; device++) {
		check_used("the pool", pool, device, 0);
		for (uint32_t s = 0; s < SLICES; s++)
			check_used("a slice", slices[s], device, 0);
	}
	if (!by_slice || !by_pool)
		FAIL("%" PRIu64 " refused by the slices and %" PRIu64 " by the pool: no race",
		     by_slice, by_pool);
	printf("pool: ok: %u processes, %" PRIu64 " operations, %" PRIu64
	       " refused by the slices, %" PRIu64 " by the pool, %u killed, %" PRIu64
	       " bytes settled by siblings, %u balances, peak %" PRIu64 " of %" PRIu64
	       ", seed %" PRIu64 "\n",
	       processes, operations, by_slice, by_pool, kills, recovered, pauses,
	       pool->device[DEVICES - 1].peak, limit, seed);
	return 0;
}
