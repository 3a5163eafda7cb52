/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how soon a killed process's bytes are available to its sibling. Run in a slice of 1 GiB.
 *
 *   kills COUNT         COUNT times: a process holds all, an allocation is refused, the
 *                       process is killed, the allocation succeeds
 *   kills orphans FILE  the same with 8 holders, killed in turn once FILE appears, when no
 *                       enforcer runs
 *
 * Prints percentiles of the time from SIGKILL to success, in microseconds. Exits 0 if every try
 * succeeded.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "driver.h"

#include "charged.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static size_t blocks_left(void)
{
	return left() & ~(2 * MIB - 1);
}

/* Allocate `bytes` (0: all that is left), report it, and wait to be killed. */
static int hold(size_t bytes)
{
	CUdeviceptr p;

	/* The parent may fail. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	use_primary();
	if (cuMemAlloc_v2(&p, bytes ? bytes : blocks_left()) || write(STDOUT_FILENO, "h", 1) != 1)
		return 1;
	for (;;)
		pause();
}

static pid_t start_holder(char *self, size_t bytes)
{
	int out[2];
	char c, text[32];
	pid_t pid;

	snprintf(text, sizeof(text), "%zu", bytes);
	if (pipe2(out, 0))
		exit(1);
	pid = fork();
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		close(out[0]);
		close(out[1]);
		execl("/proc/self/exe", self, "hold", text, (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	if (read(out[0], &c, 1) != 1) {
		printf("a holder did not start\n");
		exit(1);
	}
	close(out[0]);
	return pid;
}

static double kill_and_take(pid_t pid, size_t bytes, CUdeviceptr *p)
{
	double killed;

	if (cuMemAlloc_v2(p, bytes) != CUDA_ERROR_OUT_OF_MEMORY) {
		printf("%zu bytes fitted while they were held\n", bytes);
		exit(1);
	}
	killed = now();
	kill(pid, SIGKILL);
	while (cuMemAlloc_v2(p, bytes) != CUDA_SUCCESS) {
		if (now() - killed > 60) {
			printf("the bytes of a dead process did not come back in a minute\n");
			exit(1);
		}
	}
	killed = (now() - killed) * 1e6;
	waitpid(pid, NULL, 0);
	return killed;
}

int main(int argc, char **argv)
{
	static double took[100000];
	pid_t holders[8];
	CUdeviceptr p;
	int count;

	if (argc > 2 && strcmp(argv[1], "hold") == 0)
		return hold(strtoull(argv[2], NULL, 10));
	use_primary();
	if (argc > 2) {
		size_t each = 64 * MIB;

		count = 8;
		for (int i = 0; i < count; i++)
			holders[i] = start_holder(argv[0], each);
		if (blocks_left() && cuMemAlloc_v2(&p, blocks_left()) != CUDA_SUCCESS)
			return 1;
		printf("ready\n");
		fflush(stdout);
		while (access(argv[2], F_OK) != 0)
			usleep(1000);
		/* Driver truth may release overhead of the creation of contexts. */
		while (blocks_left() && cuMemAlloc_v2(&p, blocks_left()) == CUDA_SUCCESS)
			;
		for (int i = 0; i < count; i++)
			took[i] = kill_and_take(holders[i], each, &p);
	} else {
		count = argc > 1 ? atoi(argv[1]) : 100;
		for (int i = 0; i < count; i++) {
			pid_t pid = start_holder(argv[0], 0);

			took[i] = kill_and_take(pid, 256 * MIB, &p);
			cuMemFree_v2(p);
		}
	}
	qsort(took, (size_t)count, sizeof(*took), by_value);
	printf("%d kills: bytes were back after %.0f us (median), %.0f us (p99), %.0f us (most)\n",
	       count, took[count / 2], took[count * 99 / 100], took[count - 1]);
	return 0;
}
