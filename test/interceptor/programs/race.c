/* SPDX-License-Identifier: Apache-2.0 */
/*
 * race SECONDS PROCESSES KILLS LIMIT [REFUSALS [SEED]]: processes of one slice compete for its last
 * bytes, on every device, through the driver's API, while some of them are killed at random: for
 * SECONDS, and until there were REFUSALS (0 unless given). Run in a slice of LIMIT bytes per
 * device. Sizes are multiples of 2 MiB, so that requests and charges are equal; test/ledger has
 * single bytes.
 *
 * Each process keeps books in memory that all share, around every call:
 *
 *   certain   that it surely holds: from after an allocation until before its free
 *   possible  that it may hold: from before the call until after it failed, or its free succeeded
 *
 * Never over: the sum of all `certain` never exceeds the limit. Never refused wrongly: a request is
 * refused only if the sum of all `possible` exceeded it at some time during the call. At pauses
 * nothing is in flight: then the slice's own figure equals the sum of the living, to the byte.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "driver.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 256
#define DEVICES 2
#define HELD 64
#define LOOKS 6000 /* of 5 ms: the enforcer may be delayed, for example by a busy disk */

struct books {
	_Atomic uint64_t certain[DEVICES], possible[DEVICES];
	_Atomic uint32_t ready;
	_Atomic uint32_t idle; /* paused, nothing is in flight */
};

static struct shared {
	_Atomic uint32_t pause; /* 1: nothing may be in flight; 2: free everything, too */
	_Atomic uint32_t stop, wrong;
	_Atomic uint64_t certain[DEVICES], possible[DEVICES];
	_Atomic uint64_t added[DEVICES]; /* sum of all additions to `possible` */
	_Atomic uint64_t calls, refusals;
	uint64_t limit, per_context, base[DEVICES];
	struct books books[MOST];
} * shared;

static int processes, devices;

static void complain(const char *what, int device, uint64_t a, uint64_t b)
{
	printf("%s on device %d: %llu, limit %llu\n", what, device, (unsigned long long)a,
	       (unsigned long long)b);
	fflush(stdout);
	shared->wrong = 1;
}

/*
 * A process may die between any two instructions of the four steps of its books. The order of the
 * two additions keeps the total of `certain` at or below the truth, and that of `possible` at or
 * above it, once its own books are subtracted.
 */
static uint64_t may_hold(struct books *mine, int device, uint64_t bytes)
{
	uint64_t total = atomic_fetch_add(&shared->possible[device], bytes) + bytes;

	mine->possible[device] += bytes;
	/* After the first: a reader that misses these bytes in the total finds them here later. */
	shared->added[device] += bytes;
	return total;
}

static uint64_t holds(struct books *mine, int device, uint64_t bytes)
{
	mine->certain[device] += bytes;
	return atomic_fetch_add(&shared->certain[device], bytes) + bytes;
}

static void gives_back(struct books *mine, int device, uint64_t bytes)
{
	shared->certain[device] -= bytes;
	mine->certain[device] -= bytes;
}

static void holds_no_more(struct books *mine, int device, uint64_t bytes)
{
	mine->possible[device] -= bytes;
	shared->possible[device] -= bytes;
}

static void allocate(struct books *mine, int device, size_t bytes, CUdeviceptr *pointer)
{
	uint64_t real = bytes, most, added = shared->added[device];
	CUresult result;

	most = may_hold(mine, device, real);
	result = cuMemAlloc_v2(pointer, bytes);
	shared->calls++;
	if (result == CUDA_SUCCESS) {
		uint64_t total = holds(mine, device, real);

		if (total > shared->limit)
			complain("more is held than the limit", device, total, shared->limit);
		return;
	}
	*pointer = 0;
	shared->refusals++;
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		complain("an error other than out of memory", device, (uint64_t)result, 0);
	most += shared->added[device] - added - real;
	if (most <= shared->limit)
		complain("refused though it fitted throughout", device, most, shared->limit);
	holds_no_more(mine, device, real);
}

static void release(struct books *mine, int device, CUdeviceptr pointer, size_t bytes)
{
	gives_back(mine, device, bytes);
	if (cuMemFree_v2(pointer) != CUDA_SUCCESS)
		complain("a free failed", device, pointer, 0);
	holds_no_more(mine, device, bytes);
}

static int make_context(struct books *mine, int device, CUcontext *context)
{
	for (;;) {
		may_hold(mine, device, shared->per_context);
		if (cuDevicePrimaryCtxRetain(context, device) == CUDA_SUCCESS) {
			holds(mine, device, shared->per_context);
			return 0;
		}
		holds_no_more(mine, device, shared->per_context);
		if (shared->stop)
			return 1;
		usleep(1000);
	}
}

static int initialise(void)
{
	if (cuInit(0) || cuDeviceGetCount(&devices))
		return 1;
	if (devices > DEVICES)
		devices = DEVICES;
	return 0;
}

static int child(int index, unsigned int seed)
{
	struct books *mine = &shared->books[index];
	CUdeviceptr pointer[DEVICES][HELD] = {0};
	size_t size[DEVICES][HELD];
	CUcontext context[DEVICES] = {NULL};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (initialise())
		return 1;
	for (int d = 0; d < devices; d++) {
		if (make_context(mine, d, &context[d]))
			return 0;
	}
	mine->ready = 1;
	while (!shared->stop) {
		int d = rand_r(&seed) % devices, i = rand_r(&seed) % HELD;
		/* Mostly small ones, to compete for the last bytes, and some large ones. */
		size_t bytes = ((size_t)rand_r(&seed) % (rand_r(&seed) % 4 ? 2 : 12) + 1) << 21;

		uint32_t pause = shared->pause;

		if (pause) {
			for (d = 0; d < devices && pause == 2; d++) {
				cuCtxSetCurrent(context[d]);
				for (i = 0; i < HELD; i++) {
					if (pointer[d][i])
						release(mine, d, pointer[d][i], size[d][i]);
					pointer[d][i] = 0;
				}
			}
			mine->idle = 1;
			while (shared->pause == pause && !shared->stop)
				usleep(200);
			mine->idle = 0;
			continue;
		}
		cuCtxSetCurrent(context[d]);
		if (pointer[d][i]) {
			release(mine, d, pointer[d][i], size[d][i]);
			pointer[d][i] = 0;
		} else {
			size[d][i] = bytes;
			allocate(mine, d, bytes, &pointer[d][i]);
		}
	}
	return 0;
}

static pid_t start(char **argv, int index, unsigned int seed)
{
	pid_t pid = fork();

	if (pid == 0) {
		char number[16], text[16];

		snprintf(number, sizeof(number), "%d", index);
		snprintf(text, sizeof(text), "%u", seed);
		/* CUDA does not survive a fork, so the child calls exec. */
		execl("/proc/self/exe", argv[0], "child", number, argv[2], text, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static uint64_t used_by_slice(CUcontext context)
{
	size_t available, total;

	cuCtxSetCurrent(context);
	if (cuMemGetInfo_v2(&available, &total))
		complain("cuMemGetInfo failed", 0, 0, 0);
	return shared->limit - available;
}

int main(int argc, char **argv)
{
	static pid_t pids[MOST];
	int is_child = argc > 4 && strcmp(argv[1], "child") == 0, kills, checks = 0, killed = 0;
	unsigned int seed;
	CUcontext context[DEVICES];
	unsigned long long least;
	double end;
	int f;

	if (argc < 5)
		return 64;
	processes = atoi(argv[is_child ? 3 : 2]);
	if (is_child) {
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
		return shared == MAP_FAILED ? 1 : child(atoi(argv[2]), (unsigned int)atoi(argv[4]));
	}
	kills = atoi(argv[3]);
	least = argc > 5 ? strtoull(argv[5], NULL, 10) : 0;
	seed = argc > 6 ? (unsigned int)atoi(argv[6]) : (unsigned int)time(NULL);
	printf("seed %u\n", seed);
	f = memfd_create("race", 0);
	if (f < 0 || dup2(f, 42) != 42 || ftruncate(42, sizeof(*shared)))
		return 1;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, 42, 0);
	if (shared == MAP_FAILED)
		return 1;
	shared->limit = strtoull(argv[4], NULL, 10);

	if (initialise())
		return 1;
	for (int d = 0; d < devices; d++) {
		if (cuDevicePrimaryCtxRetain(&context[d], d))
			return 1;
		shared->per_context = shared->base[d] = used_by_slice(context[d]);
		shared->certain[d] = shared->possible[d] = shared->base[d];
	}
	if (shared->per_context * (uint64_t)(processes + 1) >= shared->limit) {
		printf("the limit leaves no room beside %d contexts of %llu bytes\n", processes + 1,
		       (unsigned long long)shared->per_context);
		return 1;
	}
	for (int i = 0; i < processes; i++)
		pids[i] = start(argv, i, seed + (unsigned int)i);

	end = now() + atoi(argv[1]);
	while (!shared->wrong && (now() < end || shared->refusals < least)) {
		/* The new contexts may not fit beside the others' bytes. */
		shared->pause = 2;
		for (int i = 0; i < processes; i++) {
			while (!shared->books[i].ready && !shared->wrong) {
				if (waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
					complain("a child did not start", 0, (uint64_t)i, 0);
					break;
				}
				usleep(1000);
			}
		}
		shared->pause = 0;
		usleep(50000 + (unsigned int)rand_r(&seed) % 100000);
		for (int k = 0; k < kills; k++) {
			int i = rand_r(&seed) % processes;

			if (!pids[i])
				continue;
			/* Stopped at any instruction; its books do not change any more. */
			kill(pids[i], SIGSTOP);
			waitpid(pids[i], NULL, WUNTRACED);
			for (int d = 0; d < devices; d++)
				shared->certain[d] -= shared->books[i].certain[d];
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
			pids[i] = 0;
			killed++;
		}
		shared->pause = 1;
		for (int i = 0; i < processes; i++) {
			while (pids[i] && !shared->books[i].idle && !shared->wrong)
				usleep(200);
		}
		for (int d = 0; d < devices; d++) {
			uint64_t expected = shared->base[d], possible = shared->base[d], seen = 0;

			for (int i = 0; i < processes; i++) {
				if (!pids[i])
					continue; /* a dead process's books */
				expected += shared->books[i].certain[d];
				possible += shared->books[i].possible[d];
			}
			/*
			 * The enforcer settles exits at once, but not within our waitpid().
			 * Overhead that it saw between two calls is gone after its second sample, a
			 * second later.
			 */
			for (int tries = 0; tries < LOOKS; tries++) {
				seen = used_by_slice(context[d]);
				if (seen == expected)
					break;
				usleep(5000);
			}
			if (seen != expected)
				complain("the ledger is not the sum of the living", d, seen,
				         expected);
			if (expected != possible)
				complain("the books of the test differ", d, expected, possible);
			checks++;
			shared->certain[d] = shared->possible[d] = expected;
		}
		for (int i = 0; i < processes; i++) {
			if (!pids[i]) {
				memset(&shared->books[i], 0, sizeof(shared->books[i]));
				pids[i] = start(argv, i, (unsigned int)rand_r(&seed));
			}
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
	for (int d = 0; d < devices && !shared->wrong; d++) {
		uint64_t seen = 0;

		for (int tries = 0;
		     tries < LOOKS && (seen = used_by_slice(context[d])) != shared->per_context;
		     tries++)
			usleep(5000);
		if (seen != shared->per_context)
			complain("left over at the end", d, seen, shared->per_context);
	}
	printf("%d processes, %llu calls, %llu refusals, %d kills, %d exact comparisons: %s\n",
	       processes, (unsigned long long)shared->calls, (unsigned long long)shared->refusals,
	       killed, checks, shared->wrong ? "WRONG" : "never over, never refused wrongly");
	return shared->wrong ? 1 : 0;
}
