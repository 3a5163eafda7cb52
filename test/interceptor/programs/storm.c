/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm SECONDS PROCESSES KILLS [SEED [KINDS]]: processes of one slice allocate and free memory of
 * every kind that the driver has, at random, and some of them are killed at random. Run in a slice
 * on one device, with a quota larger than their contexts. KINDS is a sum of powers of two: the
 * kinds of memory (enum kind) and of deeds (enum deed).
 *
 * At pauses nothing is in flight. Each process then reports what the driver holds for it, from what
 * it knows of its memory. The parent compares the slice's ledger, which its own interceptor has
 * mapped: each living process's lane to the byte, and the sum. At the end nothing may be left. A
 * process without a step for a minute hangs. The exit status is 3 if nothing was wrong, but SECONDS
 * were too few for every kind.
 */
#define _GNU_SOURCE
#include "storm.h"
#include "clock.h"

#include "ledger.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RACERS 2
#define TOO_SHORT 3 /* exit status: nothing was wrong, and not all was tried */

struct shared *shared;
unsigned int kinds = (1u << DEEDS) - 1;
unsigned int seed;

static bool simulated;
static _Atomic uint32_t racing;

void complain(const char *what, uint64_t a, uint64_t b)
{
	printf("%s: %llu, %llu\n", what, (unsigned long long)a, (unsigned long long)b);
	fflush(stdout);
	shared->wrong = 1;
}

bool done(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return true;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		shared->refusals++;
	else
		complain(what, (uint64_t)result, 0);
	return false;
}

static void borrow(int me, int others)
{
	int from = rand_r(&seed) % others;
	CUipcMemHandle handle;
	CUdeviceptr pointer;

	if (from == me || !shared->of[from].lends)
		return;
	handle = shared->of[from].lent;
	if (cuIpcOpenMemHandle_v2(&pointer, handle, 1) != CUDA_SUCCESS)
		return;
	shared->opens++;
	if (cuIpcCloseMemHandle(pointer))
		complain("cuIpcCloseMemHandle failed", pointer, 0);
}

/* Threads race to retain and release the primary context; at a pause it is gone. */
static void *race(void *argument)
{
	unsigned int random = (unsigned int)(uintptr_t)argument;

	while (!shared->stop) {
		CUcontext primary;
		CUdeviceptr pointer;

		/* A card takes a tenth of a second for each, while the others wait. */
		usleep((unsigned int)rand_r(&random) % (simulated ? 60000 : 8000000));
		racing++;
		if (!shared->pause && !shared->stop &&
		    done(cuDevicePrimaryCtxRetain(&primary, 0), "cuDevicePrimaryCtxRetain")) {
			if (cuCtxSetCurrent(primary) ||
			    (done(cuMemAlloc_v2(&pointer, 4 * MIB), "an allocation") &&
			     cuMemFree_v2(pointer)) ||
			    cuCtxSetCurrent(NULL) || cuDevicePrimaryCtxRelease_v2(0))
				complain("the primary context failed", 0, 0);
			shared->races++;
		}
		racing--;
	}
	return NULL;
}

/* A context may be refused while the others hold all: they pause until it exists. It is not the
 * primary one, for which threads race. */
static int begin(CUcontext *context)
{
	char name[128] = "";
	CUresult result;

	if (cuInit(0) || cuDeviceGetName(name, sizeof(name), 0))
		return 1;
	simulated = strstr(name, "(simulated)") != NULL;
	while ((result = cuCtxCreate_v2(context, 0, 0)) != CUDA_SUCCESS) {
		if (result != CUDA_ERROR_OUT_OF_MEMORY || shared->stop)
			return 1;
		usleep(10000);
	}
	return cuCtxSetCurrent(*context) || !kinds_begin();
}

static struct ledger *find_ledger(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	struct ledger *found = NULL;
	char line[512];

	while (maps && !found && fgets(line, sizeof(line), maps)) {
		unsigned long begin, end;

		if (sscanf(line, "%lx-%lx rw-s", &begin, &end) == 2 && strstr(line, "/memfd:") &&
		    end - begin >= sizeof(struct ledger) &&
		    ledger_valid((struct ledger *)begin, sizeof(struct ledger)))
			found = (struct ledger *)begin;
	}
	if (maps)
		fclose(maps);
	return found;
}

static uint32_t lane_of(const struct ledger *ledger, pid_t pid)
{
	for (uint32_t lane = 1; lane <= ledger->high_lane && lane < LEDGER_LANES; lane++) {
		if (ledger->lane[lane].state == LEDGER_LIVE &&
		    ledger->lane[lane].ns_pid == (uint32_t)pid)
			return lane;
	}
	return 0;
}

/* Unexpected memory of code and contexts is charged at the next request at the latest. Makes two,
 * since the first may come right after one that could not tell. */
static void ask_once_more(void)
{
	for (int i = 0; i < 2; i++) {
		CUdeviceptr pointer;

		usleep(15000);
		if (cuMemAlloc_v2(&pointer, 2 * BLOCK) == CUDA_SUCCESS &&
		    cuMemFree_v2(pointer) != CUDA_SUCCESS)
			complain("a free failed", 0, 0);
	}
}

static int child(int me, int others)
{
	const struct ledger *ledger;
	CUcontext context;
	pthread_t thread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (begin(&context)) {
		if (!shared->stop)
			complain("a process could not begin", (uint64_t)me, 0);
		return 1;
	}
	if (!(ledger = find_ledger()))
		return 1;
	shared->of[me].context = ledger->lane[lane_of(ledger, getpid())].entry[0].context;
	for (uintptr_t i = 1; i <= RACERS && kinds >> RACES & 1; i++) {
		if (pthread_create(&thread, NULL, race, (void *)(i + seed)))
			complain("no thread", i, 0);
		else
			pthread_detach(thread);
	}
	shared->of[me].ready = 1;
	while (!shared->stop) {
		uint32_t pause = shared->pause;
		int i = rand_r(&seed) % HELD;

		shared->of[me].steps++;
		if (pause) {
			shared->of[me].lends = 0;
			if (pause == 2)
				give_all();
			while (racing)
				usleep(200);
			(void)done(cuCtxSynchronize(), "a synchronisation");
			ask_once_more();
			if (pause == 2)
				(void)done(cuDeviceGraphMemTrim(0), "a trim");
			shared->of[me].holds = holds();
			shared->of[me].unsure = unsure();
			shared->of[me].idle = pause;
			while (shared->pause == pause && !shared->stop)
				usleep(200);
			shared->of[me].idle = 0;
			continue;
		}
		if (rand_r(&seed) % 64 == 0)
			launch_graph();
		if (rand_r(&seed) % 64 == 0)
			borrow(me, others);
		if ((kinds >> POOLS & 1) && rand_r(&seed) % 128 == 0)
			change_pools();
		if ((kinds >> STACKS & 1) && rand_r(&seed) % 256 == 0)
			change_stack();
		if (has(i)) {
			shared->of[me].lends = 0;
			give(i);
			continue;
		}
		take(i);
		if (lendable(i) && rand_r(&seed) % 8 == 0 &&
		    cuIpcGetMemHandle(&shared->of[me].lent, lendable(i)) == CUDA_SUCCESS)
			shared->of[me].lends = 1;
	}
	/* Wait until no thread is inside the driver before it is torn down. */
	while (racing)
		usleep(200);
	return 0;
}

static pid_t start(char **argv, int index, unsigned int random)
{
	pid_t pid = fork();

	if (pid == 0) {
		char number[16], text[16], wanted[16];

		snprintf(number, sizeof(number), "%d", index);
		snprintf(text, sizeof(text), "%u", random);
		snprintf(wanted, sizeof(wanted), "%u", kinds);
		execl("/proc/self/exe", argv[0], "child", number, argv[2], text, wanted,
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

static uint64_t lane_holds(const struct ledger *ledger, pid_t pid)
{
	uint32_t lane = lane_of(ledger, pid);

	return ledger_held(ledger, 0, lane);
}

static uint64_t all_lanes(const struct ledger *ledger)
{
	uint64_t sum = 0;

	for (uint32_t lane = 0; lane <= ledger->high_lane && lane < LEDGER_LANES; lane++)
		sum += ledger_held(ledger, 0, lane);
	return sum;
}

/* Every living process reports its bytes; its lane has the same, and all lanes the sum. */
static void compare(const struct ledger *ledger, const pid_t *pids, int processes)
{
	uint64_t all = lane_holds(ledger, getpid()), all_unsure = 0;

	for (int i = 0; i < processes; i++) {
		uint64_t lane, holds = shared->of[i].holds + shared->of[i].context;
		uint64_t unsure = shared->of[i].unsure;

		if (!pids[i])
			continue;
		lane = lane_holds(ledger, pids[i]);
		all += holds;
		all_unsure += unsure;
		if (!(kinds >> MODULE & 1) && (lane + unsure < holds || lane > holds + unsure))
			complain("a lane is not what its process holds", lane, holds);
	}
	/* The process or the enforcer charges the memory of code, and the enforcer samples twice
	 * before it releases. So the sum is compared, and may take a while. */
	for (int tries = 0; kinds >> MODULE & 1; tries++) {
		uint64_t used = ledger->device[0].word.used;

		if (used + all_unsure >= all && used <= all + all_unsure)
			break;
		if (tries == 2000) {
			complain("what is charged is not what all hold", used, all);
			return;
		}
		usleep(5000);
	}
	/* Exits are settled at once, but not within our waitpid(); driver truth sometimes changes
	 * lane 0. */
	for (int tries = 0; all_lanes(ledger) != ledger->device[0].word.used; tries++) {
		if (tries == 1000) {
			complain("the lanes are not the whole", all_lanes(ledger),
			         ledger->device[0].word.used);
			return;
		}
		usleep(5000);
	}
}

static void await(const pid_t *pids, int processes, uint32_t pause, int ready)
{
	double patience = now() + 60;

	for (int i = 0; i < processes; i++) {
		uint64_t steps = shared->of[i].steps;

		while (pids[i] && !shared->wrong &&
		       !(ready ? shared->of[i].ready : shared->of[i].idle == pause)) {
			if (waitpid(pids[i], NULL, WNOHANG) == pids[i])
				complain("a process ended by itself", (uint64_t)i, 0);
			if (steps != shared->of[i].steps) {
				steps = shared->of[i].steps;
				patience = now() + 60;
			}
			if (now() > patience)
				complain("a process hangs", (uint64_t)i, steps);
			usleep(500);
		}
	}
}

int main(int argc, char **argv)
{
	static pid_t pids[MOST];
	int is_child = argc > 4 && strcmp(argv[1], "child") == 0, processes, f;
	uint64_t allocations = 0, kills = 0, pauses = 0, peak = 0, surplus = 0;
	bool missed = false;
	struct ledger *ledger;
	CUcontext context;
	double end, told;

	if (argc < 4)
		return 64;
	processes = atoi(argv[is_child ? 3 : 2]);
	if (processes < 1 || processes > MOST)
		return 64;
	if (argc > 5)
		kinds = (unsigned int)atoi(argv[5]);
	if (!(kinds & ((1u << KINDS) - 1)))
		return 64;
	if (is_child) {
		seed = (unsigned int)strtoul(argv[4], NULL, 10);
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
		return shared == MAP_FAILED ? 1 : child(atoi(argv[2]), processes);
	}
	seed = argc > 4 ? (unsigned int)strtoul(argv[4], NULL, 10) : (unsigned int)time(NULL);
	printf("seed %u\n", seed);
	f = memfd_create("storm", 0);
	if (f < 0 || dup2(f, 42) != 42 || ftruncate(42, sizeof(*shared)))
		return 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
	if (shared == MAP_FAILED || begin(&context) || !(ledger = find_ledger())) {
		printf("not in a slice, or no context\n");
		return 1;
	}
	for (int i = 0; i < processes; i++)
		pids[i] = start(argv, i, (unsigned int)rand_r(&seed));

	end = now() + atoi(argv[1]);
	told = now();
	while (now() < end && !shared->wrong) {
		/* The new processes' contexts may not fit beside what the others hold. */
		shared->pause = 2;
		await(pids, processes, 2, 1);
		shared->pause = 0;
		for (int i = 0; i < 20; i++) {
			uint64_t overhead = ledger_held(ledger, 0, 0), used;

			used = ledger->device[0].word.used;
			if (used > peak)
				peak = used;
			if (overhead == ledger_held(ledger, 0, 0) &&
			    used > overhead + ledger->device[0].limit &&
			    used - overhead - ledger->device[0].limit > surplus)
				surplus = used - overhead - ledger->device[0].limit;
			usleep(1000 + (unsigned int)rand_r(&seed) % 10000);
		}
		for (int k = atoi(argv[3]); k > 0; k--) {
			int i = rand_r(&seed) % processes;

			if (!pids[i])
				continue;
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
			pids[i] = 0;
			kills++;
		}
		shared->pause = 1;
		await(pids, processes, 1, 0);
		if (!shared->wrong)
			compare(ledger, pids, processes);
		pauses++;
		for (int i = 0; i < processes; i++) {
			if (!pids[i]) {
				memset(&shared->of[i], 0, sizeof(shared->of[i]));
				pids[i] = start(argv, i, (unsigned int)rand_r(&seed));
			}
		}
		if (isatty(STDERR_FILENO) && now() - told > 5) {
			fprintf(stderr, "%.0f s to go, %llu kills\r", end - now(),
			        (unsigned long long)kills);
			told = now();
		}
	}
	shared->stop = 1;
	for (int i = 0; i < processes; i++) {
		if (pids[i]) {
			if (shared->wrong)
				kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
	}
	/* Only this process and the enforcer's overhead are left; the enforcer corrects that
	 * later. */
	for (int tries = 0; tries < 2000 && !shared->wrong; tries++) {
		uint64_t left = 0;

		for (uint32_t lane = 1; lane <= ledger->high_lane; lane++) {
			if (lane != lane_of(ledger, getpid()))
				left += ledger_held(ledger, 0, lane);
		}
		if (!left)
			break;
		if (tries == 1999)
			complain("left over at the end", left, 0);
		usleep(5000);
	}
	/* Only a pool's own growth may exceed the limit: a fragmented pool grows by one or several
	 * steps of 32 MiB that cannot be refused in time. */
	if (surplus >
	    (kinds & (1u << POOLED | 1u << OWN_POOL) ? (uint64_t)processes * 64 * MIB : 0))
		complain("more was charged than the limit", surplus, ledger->device[0].limit);
	for (int k = 0; k < KINDS; k++) {
		allocations += shared->calls[k];
		if ((kinds >> k & 1) && !shared->calls[k]) {
			printf("kind %d of memory was never asked for\n", k);
			missed = true;
		}
	}
	printf(
	    "%d processes, %llu allocations of %d kinds, %llu graphs, %llu opened handles, %llu "
	    "pools destroyed, %llu stacks changed, %llu primary contexts, %llu "
	    "refusals, %llu kills, %llu exact comparisons, at most %llu MiB charged of %llu, %llu "
	    "above it by pools' growth: %s\n",
	    processes, (unsigned long long)allocations, KINDS, (unsigned long long)shared->launches,
	    (unsigned long long)shared->opens, (unsigned long long)shared->pools,
	    (unsigned long long)shared->stacks, (unsigned long long)shared->races,
	    (unsigned long long)shared->refusals, (unsigned long long)kills,
	    (unsigned long long)pauses, (unsigned long long)(peak >> 20),
	    (unsigned long long)(ledger->device[0].limit >> 20),
	    (unsigned long long)(surplus >> 20), shared->wrong ? "WRONG" : "exact");
	return shared->wrong ? 1 : missed ? TOO_SHORT : 0;
}
