/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of a slice checkpoints another and restores it. Run in an otherwise idle slice of 4
 * GiB. Prints what is wrong, and exits 0 if nothing is.
 *
 * A checkpointed process stays charged, so that it can return. If it dies first, all its memory is
 * released, once.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define HELD (2048 * MIB)
#define MORE (1536 * MIB)

static int wrong;

static void expect(const char *step, unsigned long long got, unsigned long long wanted)
{
	if (got == wanted)
		return;
	printf("%s: %llu, expected %llu\n", step, got, wanted);
	wrong = 1;
}

static size_t left(void)
{
	size_t available = 0, total;

	expect("cuMemGetInfo", (unsigned int)cuMemGetInfo_v2(&available, &total), 0);
	return available;
}

/* Driver truth may count something for a moment, and settles exits with a delay. */
static void settles_at(const char *step, size_t wanted)
{
	for (int tries = 0; tries < 1000 && left() != wanted; tries++)
		usleep(5000);
	expect(step, left(), wanted);
}

static int begin(void)
{
	CUcontext context;

	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}

static int target(int out, int in)
{
	CUdeviceptr held, more;
	char c = 'x';

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (begin() || cuMemAlloc_v2(&held, HELD) || write(out, &c, 1) != 1)
		return 1;
	if (read(in, &c, 1) != 1 || cuMemAlloc_v2(&more, 64 * MIB) || cuMemFree_v2(more) ||
	    write(out, &c, 1) != 1)
		return 1;
	pause();
	return 0;
}

int main(int argc, char **argv)
{
	int from[2], to[2];
	size_t before, beside;
	CUdeviceptr pointer;
	char out[16], in[16], c;
	pid_t pid;

	if (argc == 4 && strcmp(argv[1], "target") == 0)
		return target(atoi(argv[2]), atoi(argv[3]));
	if (begin() || pipe(from) || pipe(to))
		return 1;
	before = left();
	pid = fork();
	if (pid == 0) {
		snprintf(out, sizeof(out), "%d", from[1]);
		snprintf(in, sizeof(in), "%d", to[0]);
		execl("/proc/self/exe", argv[0], "target", out, in, (char *)NULL);
		_exit(127);
	}
	if (read(from[0], &c, 1) != 1)
		return 1;
	usleep(1500000); /* for a sample of both */
	beside = left();
	expect("beside it", (unsigned int)cuMemAlloc_v2(&pointer, MORE), CUDA_ERROR_OUT_OF_MEMORY);

	expect("lock", (unsigned int)cuCheckpointProcessLock(pid, NULL), 0);
	expect("restore of one that is not away",
	       (unsigned int)cuCheckpointProcessRestore(pid, NULL) != 0, 1);
	expect("checkpoint", (unsigned int)cuCheckpointProcessCheckpoint(pid, NULL), 0);
	usleep(1500000); /* for another sample */
	settles_at("while it is away", beside);
	expect("in its place", (unsigned int)cuMemAlloc_v2(&pointer, MORE),
	       CUDA_ERROR_OUT_OF_MEMORY);
	expect("restore", (unsigned int)cuCheckpointProcessRestore(pid, NULL), 0);
	settles_at("it is back", beside);
	expect("beside it again", (unsigned int)cuMemAlloc_v2(&pointer, MORE),
	       CUDA_ERROR_OUT_OF_MEMORY);
	expect("unlock", (unsigned int)cuCheckpointProcessUnlock(pid, NULL), 0);
	if (write(to[1], &c, 1) != 1 || read(from[0], &c, 1) != 1)
		expect("it goes on", 0, 1);

	expect("lock again", (unsigned int)cuCheckpointProcessLock(pid, NULL), 0);
	expect("checkpoint again", (unsigned int)cuCheckpointProcessCheckpoint(pid, NULL), 0);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	settles_at("it died away", before);
	expect("what fits", (unsigned int)cuMemAlloc_v2(&pointer, MORE), 0);
	expect("free", (unsigned int)cuMemFree_v2(pointer), 0);
	if (!wrong)
		printf("a checkpointed process stays charged\n");
	return wrong;
}
