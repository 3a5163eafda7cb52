/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL at any instruction.
 *
 * A child makes one operation on the ledger while its parent single-steps it, and is killed after
 * exactly k instructions, for every k until the operation is complete. Then the parent acts for the
 * living: the word may be changed first (which replaces the dead process's tag), the lane is
 * settled by one process or by two at a time, settled again, and given to another process. The
 * books must balance to the byte.
 *
 *   step [STRIDE]
 *
 * A sibling's change in the middle is combined with a death after it at every STRIDE-th instruction
 * (default 1). From 10 on it is a short run: one scenario of each kind is killed at every
 * instruction, the others at some.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { ENFORCER = 0, VICTIM = 1, SIBLING = 2, LANES_USED = 3 };

#define LIMIT 100u
#define OVERHEAD 7u
#define SIBLING_HOLDS 5u

static struct ledger *ledger;
static struct {
	int started, finished;
	/* For the helper that settles at the same time as the parent. While awake it spins, to
	 * start as early. */
	int awake, go, quit;
	uint64_t generation;
} * control;

static struct ledger_account enforcer, sibling, victim;
static uint64_t before; /* bytes of the victim before the operation */

static uint64_t others(void)
{
	return enforcer.held + sibling.held;
}

static void set_up(void)
{
	uint8_t name[16] = {1};

	/* Only the used part: the page has 4 MiB. */
	memset(ledger, 0, offsetof(struct ledger, lane) + LANES_USED * sizeof(struct ledger_lane));
	ledger_format(ledger, name);
	enforcer = ledger_open(ledger, 0, ENFORCER);
	if (ledger_limit(&enforcer, LIMIT) != LEDGER_OK ||
	    ledger_set(&enforcer, OVERHEAD) != LEDGER_OK)
		FAIL("the enforcer cannot begin");
	for (uint32_t lane = VICTIM; lane <= SIBLING; lane++)
		if (ledger_recycle(ledger, lane) != LEDGER_OK)
			FAIL("recycle of a new lane failed");
	victim = ledger_open(ledger, 0, VICTIM);
	sibling = ledger_open(ledger, 0, SIBLING);
	if (ledger_charge(&sibling, SIBLING_HOLDS) != LEDGER_OK)
		FAIL("the sibling cannot charge");
}

static void hold(uint64_t bytes)
{
	if (ledger_charge(&victim, bytes) != LEDGER_OK)
		FAIL("the victim cannot charge");
}

static void prepare_new(void)
{
}
static void prepare_odd(void)
{
	hold(10);
}
static void prepare_even(void)
{
	hold(4);
	hold(6);
}
/* The victim recorded a change that did not take effect: its swap was lost, then it was refused. */
static void prepare_refused(void)
{
	struct ledger_entry *entry = &ledger->lane[VICTIM].entry[0];

	hold(10);
	entry->sum[(victim.number + 1) & 1] = 99;
	entry->number = victim.number + 1;
}
/* The sibling's change follows the victim's, which is confirmed and no longer in the word. */
static void prepare_covered(void)
{
	hold(10);
	ledger_charge(&sibling, 1);
}

static void charge(void)
{
	ledger_charge(&victim, 20);
}
static void charge_too_much(void)
{
	ledger_charge(&victim, LIMIT);
}
static void release_part(void)
{
	ledger_release(&victim, 3);
}
static void release_all(void)
{
	ledger_release(&victim, UINT64_MAX);
}
static void raise_above(void)
{
	ledger_set(&victim, 2ull * LIMIT);
}
static void charge_and_release(void)
{
	ledger_charge(&victim, 20);
	ledger_release(&victim, 5);
	ledger_charge(&victim, 1);
}
static void settle_victim(void)
{
	ledger_settle(ledger, 0, VICTIM, 1, NULL);
}
static void recycle_victim(void)
{
	ledger_recycle(ledger, VICTIM);
}
static void set_overhead(void)
{
	ledger_set(&enforcer, OVERHEAD + 6);
}
static void lower_overhead(void)
{
	ledger_set(&enforcer, 1);
}
static void lower_limit(void)
{
	ledger_limit(&enforcer, LIMIT / 2);
}

/* The process that dies: the owner of a lane, or one that settles or recycles a dead lane. */
enum who { OWNER, SETTLER, RECYCLER, OVERHEAD_WRITER };

static const struct scenario {
	const char *name;
	enum who who;
	void (*prepare)(void), (*act)(void);
	bool full;            /* every instruction, also in a short run */
	uint64_t may_hold[4]; /* allowed bytes of the victim (or lane 0) afterwards */
} scenarios[] = {
    {"first charge", OWNER, prepare_new, charge, false, {0, 20}},
    {"second charge", OWNER, prepare_odd, charge, true, {10, 30}},
    {"third charge", OWNER, prepare_even, charge, false, {10, 30}},
    {"charge after a refusal", OWNER, prepare_refused, charge, false, {10, 30}},
    {"charge, tag replaced before", OWNER, prepare_covered, charge, false, {10, 30}},
    {"charge that is refused", OWNER, prepare_even, charge_too_much, false, {10}},
    {"release of a part", OWNER, prepare_odd, release_part, true, {10, 7}},
    {"release of all", OWNER, prepare_even, release_all, false, {10, 0}},
    {"set above the limit", OWNER, prepare_odd, raise_above, false, {10, 2ull * LIMIT}},
    {"three changes", OWNER, prepare_odd, charge_and_release, false, {10, 30, 25, 26}},
    {"settling", SETTLER, prepare_odd, settle_victim, false, {10, 0}},
    {"settling, in doubt", SETTLER, prepare_refused, settle_victim, true, {10, 0}},
    {"settling, confirmed", SETTLER, prepare_covered, settle_victim, false, {10, 0}},
    {"recycling", RECYCLER, prepare_odd, recycle_victim, false, {10, 0}},
    {"recycling, in doubt", RECYCLER, prepare_refused, recycle_victim, false, {10, 0}},
    {"recycling, nothing held", RECYCLER, prepare_new, recycle_victim, false, {0}},
    {"overhead up", OVERHEAD_WRITER, prepare_odd, set_overhead, true, {OVERHEAD, OVERHEAD + 6}},
    {"overhead down", OVERHEAD_WRITER, prepare_odd, lower_overhead, false, {OVERHEAD, 1}},
    {"limit", OVERHEAD_WRITER, prepare_odd, lower_limit, false, {OVERHEAD}},
};

static pid_t begin(const struct scenario *s)
{
	pid_t child;
	int status;

	control->started = control->finished = 0;
	child = fork();
	if (child < 0)
		FAIL("fork: %s", strerror(errno));
	if (child == 0) {
		die_with_parent();
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		syscall(SYS_kill, getpid(), SIGSTOP);
		__atomic_store_n(&control->started, 1, __ATOMIC_SEQ_CST);
		s->act();
		__atomic_store_n(&control->finished, 1, __ATOMIC_SEQ_CST);
		for (;;)
			syscall(SYS_pause);
	}
	if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		FAIL("the child did not stop to be traced");
	return child;
}

/* Executes one instruction; false once the operation is complete. */
static bool step(pid_t child)
{
	int status;

	if (__atomic_load_n(&control->finished, __ATOMIC_SEQ_CST))
		return false;
	if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0)
		FAIL("single step: %s", strerror(errno));
	if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
		FAIL("the child ended by itself");
	return true;
}

static void end(pid_t child)
{
	kill(child, SIGKILL);
	if (waitpid(child, NULL, 0) != child)
		FAIL("the child cannot be waited for");
}

static void change_word(unsigned times)
{
	/* First one lane, then another: each confirms the tag that it replaces. */
	if (times > 0 && ledger_release(&sibling, 1) != LEDGER_OK)
		FAIL("a sibling is disturbed by a death");
	if (times > 1 && ledger_set(&enforcer, enforcer.held + 1) != LEDGER_OK)
		FAIL("the enforcer is disturbed by a death");
}

static void helper(void)
{
	die_with_parent();
	while (!__atomic_load_n(&control->quit, __ATOMIC_ACQUIRE)) {
		if (!__atomic_load_n(&control->go, __ATOMIC_ACQUIRE)) {
			if (__atomic_load_n(&control->awake, __ATOMIC_ACQUIRE))
				sched_yield();
			else
				usleep(10000);
			continue;
		}
		ledger_settle(ledger, 0, VICTIM, control->generation, NULL);
		__atomic_store_n(&control->go, 0, __ATOMIC_RELEASE);
	}
	_exit(0);
}

static void expect_used(const struct scenario *s, unsigned k, const char *when, uint64_t held)
{
	if (used_of(ledger, 0) != others() + held)
		FAIL("%s, killed at instruction %u: %s: used is %" PRIu64
		     ", the living hold %" PRIu64 " + %" PRIu64,
		     s->name, k, when, used_of(ledger, 0), others(), held);
}

/* Takes the victim's lane from any state to one that works for another process. */
static void check_lane(const struct scenario *s, unsigned k, bool both)
{
	uint64_t generation = generation_of(ledger, VICTIM), bytes;
	uint64_t limit = ledger->device[0].limit;
	struct ledger_account next;

	if (both) {
		control->generation = generation;
		__atomic_store_n(&control->go, 1, __ATOMIC_RELEASE);
	}
	if (ledger_settle(ledger, 0, VICTIM, generation, NULL) != LEDGER_OK)
		FAIL("%s, %u: settle failed", s->name, k);
	expect_used(s, k, "after settling", 0);
	while (both && __atomic_load_n(&control->go, __ATOMIC_ACQUIRE))
		sched_yield();
	expect_used(s, k, "after both settled", 0);
	if (ledger_settle(ledger, 0, VICTIM, generation, &bytes) != LEDGER_OK || bytes != 0)
		FAIL("%s, %u: settled twice", s->name, k);
	change_word(1);
	if (ledger_settle(ledger, 0, VICTIM, generation, &bytes) != LEDGER_OK || bytes != 0)
		FAIL("%s, %u: settled again after another change", s->name, k);
	expect_used(s, k, "after settling again", 0);

	if (ledger_recycle(ledger, VICTIM) != LEDGER_OK)
		FAIL("%s, %u: cannot be recycled", s->name, k);
	next = ledger_open(ledger, 0, VICTIM);
	if (next.held != 0)
		FAIL("%s, %u: the next process inherits %" PRIu64, s->name, k, next.held);
	if (ledger_charge(&next, 2) != LEDGER_OK || ledger_charge(&next, 3) != LEDGER_OK)
		FAIL("%s, %u: the next process cannot charge", s->name, k);
	expect_used(s, k, "with the next process", 5);
	if (ledger_settle(ledger, 0, VICTIM, generation, &bytes) != LEDGER_OK || bytes != 0)
		FAIL("%s, %u: a late settler took from the next process", s->name, k);
	expect_used(s, k, "after a late settler", 5);
	/* Exactly what is left, and not one byte more. */
	if (ledger_charge(&next, limit - others() - 5 + 1) != LEDGER_REFUSED ||
	    ledger_charge(&next, limit - others() - 5) != LEDGER_OK)
		FAIL("%s, %u: the limit is not met to the byte", s->name, k);
	expect_used(s, k, "at the limit", limit - others());
	if (ledger_held(ledger, 0, VICTIM) != next.held)
		FAIL("%s, %u: ledger_held", s->name, k);
}

static void check_books(const struct scenario *s, unsigned k, unsigned changes, bool both)
{
	bool allowed = false;
	uint64_t held;

	if (s->who == OVERHEAD_WRITER) {
		change_word(changes > 0);
		enforcer = ledger_open(ledger, 0, ENFORCER); /* the restarted enforcer */
		held = enforcer.held;
		for (unsigned i = 0; i < 4; i++)
			allowed |= held == s->may_hold[i];
		if (!allowed)
			FAIL("%s, %u: lane 0 holds %" PRIu64, s->name, k, held);
		expect_used(s, k, "as the enforcer came back", before);
		if (ledger_limit(&enforcer, ledger->device[0].limit) != LEDGER_OK ||
		    ledger_set(&enforcer, OVERHEAD) != LEDGER_OK)
			FAIL("%s, %u: the enforcer cannot go on", s->name, k);
		expect_used(s, k, "as the enforcer went on", before);
	} else {
		change_word(changes);
		held = used_of(ledger, 0) - others();
		for (unsigned i = 0; i < 4; i++)
			allowed |= held == s->may_hold[i];
		if (!allowed)
			FAIL("%s, %u: the dead one left %" PRIu64, s->name, k, held);
		/* The process is dead, so readers see its exact bytes, also after the lane is
		 * settled. */
		if (ledger_held(ledger, 0, VICTIM) != held)
			FAIL("%s, %u: ledger_held says %" PRIu64 ", it holds %" PRIu64, s->name, k,
			     ledger_held(ledger, 0, VICTIM), held);
	}
	check_lane(s, k, both);
}

/* Kill after k instructions, k = 0, 1, ... If `at` is not 0, a sibling changes the word after `at`
 * instructions, so a prepared swap is lost. Returns the number of instructions. */
static unsigned run(const struct scenario *s, unsigned at, unsigned changes, bool both,
                    unsigned stride, unsigned long *deaths)
{
	unsigned k = at, reached;

	__atomic_store_n(&control->awake, both, __ATOMIC_RELEASE);
	for (;; k += stride) {
		bool complete = false;
		pid_t child;

		set_up();
		s->prepare();
		before = victim.held;
		child = begin(s);
		while (!__atomic_load_n(&control->started, __ATOMIC_SEQ_CST))
			step(child);
		for (reached = 0; reached < k && !complete; reached++) {
			if (at && reached == at)
				change_word(1);
			complete = !step(child);
		}
		end(child);
		++*deaths;
		check_books(s, reached, changes, both);
		if (complete)
			return reached;
	}
}

int main(int argc, char **argv)
{
	unsigned stride = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
	unsigned long deaths = 0;
	uint64_t start = nanoseconds();
	pid_t settler;

	if (stride == 0)
		stride = 1;
	ledger = shared_memory(sizeof(*ledger));
	control = shared_memory(sizeof(*control));
	settler = fork();
	if (settler < 0)
		FAIL("fork: %s", strerror(errno));
	if (settler == 0)
		helper();

	for (unsigned i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		const struct scenario *s = &scenarios[i];
		/* ledger_recycle visits every device: ten times the instructions of the others. */
		bool lengthy = s->who == RECYCLER;
		unsigned every = stride < 10 || s->full ? 1 : lengthy ? 41 : 7;
		unsigned some = stride < 10 ? (lengthy ? 7 : 1) : (lengthy ? 97 : 11);
		unsigned apart = lengthy && stride < 97 ? 97 : stride;
		unsigned n = run(s, 0, 0, false, every, &deaths);

		for (unsigned changes = 1; changes <= 2; changes++)
			run(s, 0, changes, false, some, &deaths);
		for (unsigned changes = 0; changes <= 1; changes++)
			run(s, 0, changes, true, some, &deaths);
		for (unsigned at = 1; at < n; at += apart)
			run(s, at, 0, false, apart, &deaths);
		printf("step: %-28s %5u instructions\n", s->name, n);
		fflush(stdout);
	}
	__atomic_store_n(&control->quit, 1, __ATOMIC_RELEASE);
	waitpid(settler, NULL, 0);
	printf("step: ok: %lu deaths, %.1f s\n", deaths, (double)(nanoseconds() - start) / 1e9);
	return 0;
}
