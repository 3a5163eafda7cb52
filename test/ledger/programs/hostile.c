/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of the slice may write anything into the page, at any time. The enforcer must not
 * crash, read outside of the page, or loop forever.
 *
 *   hostile [-t SECONDS] [-s SEED]
 *
 * Tests unchanging pages first, then a page that a child keeps writing to. An alarm catches a call
 * that does not return.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define LONGEST_CALL 20u /* seconds: a million swaps lost to a busy writer */

static struct ledger *ledger;
static uint64_t random_state;
static unsigned long calls, results[4];

static void too_long(int signal)
{
	static const char text[] = "hostile: a call did not return\n";

	(void)signal;
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(3);
	_exit(2);
}

/* The page ends where memory ends: an access beyond it crashes. */
static struct ledger *fenced(void)
{
	size_t unit = (size_t)sysconf(_SC_PAGESIZE);
	size_t inside = (sizeof(struct ledger) + unit - 1) / unit * unit;
	uint8_t *p = shared_memory(inside + 2 * unit);

	if (mprotect(p, unit, PROT_NONE) != 0 || mprotect(p + unit + inside, unit, PROT_NONE) != 0)
		FAIL("mprotect failed");
	return (struct ledger *)(void *)(p + unit + inside - sizeof(struct ledger));
}

/* Pure noise would fail the first check: half of the values are nearly right. */
static uint64_t near_valid(uint64_t *state)
{
	static const uint64_t edges[] = {0,
	                                 1,
	                                 2,
	                                 INT64_MAX,
	                                 UINT64_MAX,
	                                 UINT64_MAX - 1,
	                                 LEDGER_TAG_NUMBER,
	                                 LEDGER_TAG_NUMBER - 1,
	                                 (uint64_t)LEDGER_SLOTS << 48,
	                                 (uint64_t)LEDGER_LANES << 48,
	                                 0xffffull << 48,
	                                 4096};
	uint64_t r = next_random(state);

	switch (r % 4) {
	case 0:
		return next_random(state);
	case 1:
		return edges[(r >> 8) % (sizeof(edges) / sizeof(edges[0]))];
	case 2:
		return (r >> 8) % 100;
	default:
		return (r >> 8) % LEDGER_LANES << 48 | (r >> 32) % 8;
	}
}

static void scribble(uint64_t *state, size_t words)
{
	uint64_t *page = (uint64_t *)ledger;

	/* Mostly the parts that the calls below use. */
	for (size_t i = 0; i < words; i++) {
		size_t near =
		    offsetof(struct ledger, lane) / 8 + 4 * sizeof(struct ledger_lane) / 8;
		size_t at = next_random(state) % (i % 4 ? near : sizeof(*ledger) / 8);

		__atomic_store_n(&page[at], near_valid(state), __ATOMIC_RELAXED);
	}
}

static void note(enum ledger_result result)
{
	if ((unsigned)result > LEDGER_DAMAGED)
		FAIL("result %d", (int)result);
	results[result]++;
}

static void call_all(void)
{
	uint32_t device = next_random(&random_state) % LEDGER_DEVICES;
	uint32_t lane =
	    next_random(&random_state) % (next_random(&random_state) % 2 ? 4 : LEDGER_LANES);
	uint64_t generation = next_random(&random_state) % 2 ? generation_of(ledger, lane)
	                                                     : near_valid(&random_state);
	struct ledger_account account, enforcer;
	uint64_t bytes;

	alarm(LONGEST_CALL);
	ledger_valid(ledger, sizeof(*ledger));
	account = ledger_open(ledger, device, lane);
	enforcer = ledger_open(ledger, device, 0);
	note(ledger_charge(&account, near_valid(&random_state)));
	note(ledger_set(&account, near_valid(&random_state)));
	note(ledger_release(&account, near_valid(&random_state)));
	note(ledger_limit(&enforcer, near_valid(&random_state)));
	note(ledger_set(&enforcer, near_valid(&random_state)));
	note(ledger_settle(ledger, device, lane, generation, &bytes));
	note(ledger_settle(ledger, device, lane, generation, NULL));
	ledger_held(ledger, device, lane);
	ledger_number(ledger, device, lane);
	ledger_count_allocation(&account, true);
	ledger_count_refusal(&account);
	ledger_set_context(&account, near_valid(&random_state));
	alarm(LONGEST_CALL * LEDGER_DEVICES);
	note(ledger_recycle(ledger, lane));
	alarm(0);
	calls += 14;
}

/* Keeps writing to the words on which the functions swap and retry. */
static void adversary(uint64_t seed)
{
	uint64_t state = seed | 1;

	die_with_parent();
	for (;;) {
		for (unsigned i = 0; i < 200; i++) {
			for (uint32_t lane = 0; lane < 4; lane++)
				for (uint32_t device = 0; device < LEDGER_DEVICES; device++) {
					struct ledger_device *d = &ledger->device[device];

					__atomic_store_n(
					    &ledger->lane[lane].entry[device].confirmed,
					    next_random(&state) % 4, __ATOMIC_RELAXED);
					__atomic_store_n(&d->peak, next_random(&state) % 4,
					                 __ATOMIC_RELAXED);
					__atomic_store_n(&d->word.tag,
					                 (uint64_t)lane << 48 |
					                     next_random(&state) % 1000,
					                 __ATOMIC_RELAXED);
				}
		}
		scribble(&state, 64);
	}
}

int main(int argc, char **argv)
{
	uint64_t seconds = 2, seed = (uint64_t)getpid() ^ nanoseconds(), half;
	uint8_t name[16] = {1};
	pid_t child;
	int option, status;

	while ((option = getopt(argc, argv, "t:s:")) != -1) {
		if (option == 't')
			seconds = strtoull(optarg, NULL, 10);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	random_state = seed | 1;
	signal(SIGALRM, too_long);
	ledger = fenced();
	printf("hostile: seed %" PRIu64 "\n", seed);
	fflush(stdout);

	half = nanoseconds() + seconds * 500000000ull;
	while (nanoseconds() < half) {
		if (next_random(&random_state) % 16 == 0)
			ledger_format(ledger, name);
		scribble(&random_state, 256);
		call_all();
	}

	child = fork();
	if (child < 0)
		FAIL("fork failed");
	if (child == 0)
		adversary(next_random(&random_state));
	half = nanoseconds() + seconds * 500000000ull;
	while (nanoseconds() < half)
		call_all();
	kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
		FAIL("the adversary ended by itself");
	printf("hostile: ok: %lu calls: %lu ok, %lu refused, %lu busy, %lu damaged\n", calls,
	       results[0], results[1], results[2], results[3]);
	return 0;
}
