/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by stress.c and pool.c: many processes that charge, are killed at any moment, and are
 * replaced. The parent is the enforcer. Each program defines its processes' work, and how one is
 * started and settled.
 */
#ifndef GPUSLICE_TEST_CROWD_H
#define GPUSLICE_TEST_CROWD_H

#include "check.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum { TIGHT, ROOMY, DEVICES };

#define MOST_HELD 1000u /* per process and device */

struct worker {
	int go, parked;
	uint64_t held[DEVICES];
	uint64_t operations, refusals[2], recovered; /* refusals by a slice, by a pool */
} __attribute__((aligned(64)));

static struct {
	int pause, quit;
	int failed;
	struct worker worker[LEDGER_LANES];
} * control;
static pid_t pid_of[LEDGER_LANES];
static uint64_t random_state;

#define WRONG(...)                                                                                 \
	do {                                                                                       \
		__atomic_store_n(&control->failed, 1, __ATOMIC_SEQ_CST);                           \
		FAIL(__VA_ARGS__);                                                                 \
	} while (0)

static void work(uint32_t number, uint64_t seed);
static void start(uint32_t number);
static void settle(uint32_t number);

static bool is_dead(uint32_t pid)
{
	struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	bool dead;

	if (p.fd < 0)
		return errno == ESRCH;
	dead = poll(&p, 1, 0) == 1;
	close(p.fd);
	return dead;
}

/* As the interceptor does: the generation first, then the identity, then whether the process is
 * dead. */
static void settle_siblings(struct worker *me, const struct ledger_account *account)
{
	struct ledger *ledger = account->ledger;
	uint32_t high = __atomic_load_n(&ledger->high_lane, __ATOMIC_ACQUIRE);

	for (uint32_t lane = 1; lane <= high; lane++) {
		uint64_t generation = generation_of(ledger, lane), bytes = 0;
		uint32_t pid = __atomic_load_n(&ledger->lane[lane].pid, __ATOMIC_ACQUIRE);

		if (lane == account->lane || pid == 0 ||
		    ledger_held(ledger, account->device, lane) == 0 || !is_dead(pid))
			continue;
		if (ledger_settle(ledger, account->device, lane, generation, &bytes) != LEDGER_OK)
			WRONG("lane %u: cannot settle lane %u", account->lane, lane);
		me->recovered += bytes;
	}
}

/* Stops while a halt is requested; false if it stopped. */
static bool may_continue(struct worker *me)
{
	while (__atomic_load_n(&control->pause, __ATOMIC_ACQUIRE)) {
		__atomic_store_n(&me->parked, 1, __ATOMIC_RELEASE);
		usleep(500);
	}
	__atomic_store_n(&me->parked, 0, __ATOMIC_SEQ_CST);
	return !__atomic_load_n(&control->pause, __ATOMIC_SEQ_CST);
}

/* Stops all processes, and waits until they have stopped. The caller lets them continue. */
static void halt(uint32_t processes)
{
	uint64_t deadline = nanoseconds() + 60000000000ull;

	__atomic_store_n(&control->pause, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 1; i <= processes; i++)
		while (!__atomic_load_n(&control->worker[i].parked, __ATOMIC_ACQUIRE)) {
			if (control->failed || nanoseconds() > deadline)
				FAIL("process %u does not come to rest", i);
			usleep(200);
		}
}

static void spawn(uint32_t number)
{
	struct worker *w = &control->worker[number];
	uint64_t seed = next_random(&random_state);
	pid_t pid;

	w->go = w->parked = 0;
	w->held[TIGHT] = w->held[ROOMY] = 0;
	pid = fork();
	if (pid < 0)
		FAIL("fork: %s", strerror(errno));
	if (pid == 0)
		work(number, seed);
	pid_of[number] = pid;
}

static void give(struct ledger *ledger, uint32_t lane)
{
	/* The identity before the generation that it belongs to. */
	__atomic_store_n(&ledger->lane[lane].pid, (uint32_t)pid_of[lane], __ATOMIC_RELEASE);
	if (ledger_recycle(ledger, lane) != LEDGER_OK)
		FAIL("lane %u cannot be recycled", lane);
	__atomic_store_n(&ledger->lane[lane].state, LEDGER_LIVE, __ATOMIC_RELEASE);
}

static void settle_in(struct ledger *ledger, uint32_t lane)
{
	for (uint32_t device = 0; device < DEVICES; device++)
		if (ledger_settle(ledger, device, lane, generation_of(ledger, lane), NULL) !=
		    LEDGER_OK)
			FAIL("lane %u cannot be settled", lane);
}

static void delay_settling(void)
{
	if (next_random(&random_state) % 4 == 0)
		usleep((useconds_t)(next_random(&random_state) % 2000));
}

/* Kills some processes, settles and replaces them. Returns their number. */
static unsigned kill_some(uint32_t processes)
{
	uint32_t first = 1 + (uint32_t)(next_random(&random_state) % processes);
	uint32_t count = 1 + (uint32_t)(next_random(&random_state) % (processes / 4 + 1));
	siginfo_t info;

	if (first + count > processes + 1)
		count = processes + 1 - first;
	/* All at once: with more processes than CPUs, each must be scheduled to exit. */
	for (uint32_t i = first; i < first + count; i++)
		kill(pid_of[i], SIGKILL);
	for (uint32_t i = first; i < first + count; i++) {
		/* It stays a zombie until it is settled, so its pid is not reused. */
		if (waitid(P_PID, (id_t)pid_of[i], &info, WEXITED | WNOWAIT) != 0)
			FAIL("waitid: %s", strerror(errno));
		if (info.si_code != CLD_KILLED)
			FAIL("process %u ended by itself", i);
		settle(i);
		waitpid(pid_of[i], NULL, 0);
		start(i);
	}
	return count;
}

#endif
