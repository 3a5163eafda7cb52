/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIBLINGS 4096
#define BYTES (2u << 20)
#define ROOM (4ull << 30) /* of the card, for the measurement and for the siblings' own bytes */
#define START_SECONDS 120

enum phase {
	SLEEP,
	WORK,
};

enum state {
	STARTING,
	ATTACHED, /* it has charged, and has no context */
	CONTEXT,  /* the same, with one */
};

struct room {
	uint32_t phase; /* a futex */
	cpu_set_t cpus; /* for the siblings; empty: any */
	uint32_t state[SIBLINGS];
	uint64_t pairs[SIBLINGS]; /* of a charge and a release, since it started */
};

static struct room *room;

static struct room *map_room(int descriptor)
{
	void *p = mmap(NULL, sizeof(*room), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);

	if (p == MAP_FAILED) {
		perror("cost: mmap");
		exit(1);
	}
	return p;
}

/* --- a sibling ------------------------------------------------------------------------------ */

/* Charge and release once. Without a context only physical memory can be allocated. */
static bool charge_and_release(bool with_context)
{
	static const CUmemAllocationProp properties = {
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;

	if (with_context)
		return way->cuMemAlloc(&p, BYTES) == CUDA_SUCCESS &&
		       way->cuMemFree(p) == CUDA_SUCCESS;
	return way->cuMemCreate(&handle, BYTES, &properties, 0) == CUDA_SUCCESS &&
	       way->cuMemRelease(handle) == CUDA_SUCCESS;
}

void siblings_be_one(int descriptor, int index, bool with_context)
{
	CUcontext context;
	size_t total;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	room = map_room(descriptor);
	if (CPU_COUNT(&room->cpus) > 0)
		(void)sched_setaffinity(0, sizeof(room->cpus), &room->cpus);
	way = &program;
	CALL(cuInit, 0);
	/* The slice's quota may have room for a context while the card has none. */
	with_context = with_context && way->cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
	               way->cuCtxSetCurrent(context) == CUDA_SUCCESS;
	CALL(cuDeviceTotalMem, &total, 0);
	if (!charge_and_release(with_context)) {
		fprintf(stderr, "cost: sibling %d was refused its first %u bytes\n", index, BYTES);
		exit(1);
	}
	__atomic_store_n(&room->state[index], with_context ? CONTEXT : ATTACHED, __ATOMIC_RELEASE);
	for (;;) {
		if (__atomic_load_n(&room->phase, __ATOMIC_ACQUIRE) == SLEEP)
			(void)syscall(SYS_futex, &room->phase, FUTEX_WAIT, SLEEP, NULL, NULL, 0);
		else if (charge_and_release(with_context))
			__atomic_fetch_add(&room->pairs[index], 1, __ATOMIC_RELAXED);
	}
}

/* --- the measured process ------------------------------------------------------------------- */

static pid_t started[SIBLINGS];

/* Give this process a CPU of its own, to measure the siblings' changes of the ledger and their
 * calls of the driver, not the scheduler. */
static void choose_cpus(void)
{
	cpu_set_t all, mine;
	int first = 0;

	if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2)
		return;
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&mine);
	CPU_SET(first, &mine);
	CPU_CLR(first, &all);
	room->cpus = all;
	(void)sched_setaffinity(0, sizeof(mine), &mine);
}

static void set_phase(enum phase phase)
{
	__atomic_store_n(&room->phase, phase, __ATOMIC_RELEASE);
	(void)syscall(SYS_futex, &room->phase, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void start_one(int descriptor, int index, bool with_context)
{
	char shared[16], number[16];

	snprintf(shared, sizeof(shared), "%d", descriptor);
	snprintf(number, sizeof(number), "%d", index);
	started[index] = start_again((const char *const[]){"cost", "sibling", shared, number,
	                                                   with_context ? "context" : "bare", NULL},
	                             -1);
}

static enum state wait_for(int index)
{
	static const struct timespec moment = {.tv_nsec = 1000000};

	for (int64_t begun = now(); now() - begun < START_SECONDS * 1000000000LL;) {
		enum state state = __atomic_load_n(&room->state[index], __ATOMIC_ACQUIRE);

		if (state != STARTING)
			return state;
		if (waitpid(started[index], NULL, WNOHANG) != 0)
			break;
		nanosleep(&moment, NULL);
	}
	fprintf(stderr, "cost: sibling %d did not start\n", index);
	exit(1);
}

static uint64_t pairs_of_all(int processes)
{
	uint64_t sum = 0;

	for (int i = 1; i < processes; i++)
		sum += __atomic_load_n(&room->pairs[i], __ATOMIC_RELAXED);
	return sum;
}

static uint64_t bytes_left(void)
{
	size_t available, total;

	CALL(cuMemGetInfo, &available, &total);
	return available;
}

static void show(int processes, int contexts, enum phase phase, double milliseconds)
{
	static const struct call *const calls[] = {&call_small_kept, &call_async, &call_2m};

	set_phase(phase);
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		uint64_t before = pairs_of_all(processes);
		int64_t begun = now();
		struct cost cost = measure(calls[i], milliseconds);
		double seconds = (double)(now() - begun) / 1e9;

		printf(
		    "{\"processes\":%d,\"contexts\":%d,\"siblings\":\"%s\",\"pairs_per_s\":%.0f,",
		    processes, contexts, phase == SLEEP ? "idle" : "busy",
		    (double)(pairs_of_all(processes) - before) / seconds);
		print_cost(calls[i], &cost);
		printf("}\n");
		fflush(stdout);
	}
	set_phase(SLEEP);
}

void siblings_measure(int most, double milliseconds)
{
	int descriptor = memfd_create("siblings", 0); /* kept across exec */
	uint64_t left, context = 0;
	int processes = 1, contexts = 1;

	if (descriptor < 0 || ftruncate(descriptor, sizeof(*room)) != 0 || most > SIBLINGS) {
		fprintf(stderr, "cost: no room for %d siblings\n", most);
		exit(1);
	}
	room = map_room(descriptor);
	driver_begin(); /* the driver's threads may run anywhere */
	choose_cpus();
	show(1, 1, SLEEP, milliseconds);
	for (int goal = 2; goal <= most; goal *= 2) {
		int first = processes;

		left = bytes_left();
		for (; processes < goal; processes++) {
			/* The first sibling shows the size of a context. */
			bool with_context = left >= ROOM + context;

			start_one(descriptor, processes, with_context);
			left -= with_context ? context : 0;
		}
		for (int i = first; i < goal; i++)
			contexts += wait_for(i) == CONTEXT;
		if (!context)
			context = left > bytes_left() ? left - bytes_left() : 0;
		show(processes, contexts, SLEEP, milliseconds);
		show(processes, contexts, WORK, milliseconds);
	}
	for (int i = 1; i < processes; i++)
		kill(started[i], SIGKILL);
	for (int i = 1; i < processes; i++)
		waitpid(started[i], NULL, 0);
}
