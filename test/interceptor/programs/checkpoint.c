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

#include "charged.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define HELD (2048 * MIB)
#define MORE (1536 * MIB)

static void settles_at(const char *step, size_t wanted)
{
	if (left_becomes(wanted))
		return;
	printf("%s: %zu bytes are free, expected %zu\n", step, left(), wanted);
	wrong = 1;
}

static int target(int out, int in)
{
	CUdeviceptr held, more;
	char c = 'x';

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	use_primary();
	if (cuMemAlloc_v2(&held, HELD) || write(out, &c, 1) != 1)
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
	use_primary();
	if (pipe(from) || pipe(to))
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
	expect("beside it", cuMemAlloc_v2(&pointer, MORE), CUDA_ERROR_OUT_OF_MEMORY);

	OK(cuCheckpointProcessLock(pid, NULL));
	expect("restore of one that is not away", cuCheckpointProcessRestore(pid, NULL) != 0, 1);
	OK(cuCheckpointProcessCheckpoint(pid, NULL));
	usleep(1500000); /* for another sample */
	settles_at("while it is away", beside);
	expect("in its place", cuMemAlloc_v2(&pointer, MORE), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuCheckpointProcessRestore(pid, NULL));
	settles_at("it is back", beside);
	expect("beside it again", cuMemAlloc_v2(&pointer, MORE), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuCheckpointProcessUnlock(pid, NULL));
	if (write(to[1], &c, 1) != 1 || read(from[0], &c, 1) != 1)
		expect("it goes on", 0, 1);

	OK(cuCheckpointProcessLock(pid, NULL));
	OK(cuCheckpointProcessCheckpoint(pid, NULL));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	settles_at("it died away", before);
	OK(cuMemAlloc_v2(&pointer, MORE));
	OK(cuMemFree_v2(pointer));
	if (!wrong)
		printf("a checkpointed process stays charged\n");
	return wrong;
}
