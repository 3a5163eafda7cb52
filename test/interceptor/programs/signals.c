/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signals COUNT: COUNT processes in turn make their first CUDA call, which attaches, during a storm
 * of signals without SA_RESTART. An interrupted system call must not look like a missing enforcer:
 * each process gets its memory. Exits 0 if so.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Attaching takes some milliseconds. A real driver needs up to a minute for a context under a
 * storm. */
#define STORM_SECONDS 0.2

static pthread_t target;
static int over;

static void ignore(int number)
{
	(void)number;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *rain(void *argument)
{
	double end = now() + STORM_SECONDS;

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED) && now() < end)
		pthread_kill(target, SIGUSR1);
	return argument;
}

static int child(void)
{
	struct sigaction action = {.sa_handler = ignore};
	CUdeviceptr pointer;
	CUcontext context;
	pthread_t thread;
	CUresult result;

	alarm(60);
	sigaction(SIGUSR1, &action, NULL);
	target = pthread_self();
	/* These calls do not enter the interceptor. */
	if (cuInit(0) || pthread_create(&thread, NULL, rain, NULL))
		return 1;
	result = cuDevicePrimaryCtxRetain(&context, 0);
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	if (result == CUDA_SUCCESS)
		result = cuCtxSetCurrent(context);
	if (result == CUDA_SUCCESS)
		result = cuMemAlloc_v2(&pointer, 2 << 20);
	if (result != CUDA_SUCCESS)
		printf("CUDA error %d\n", result);
	return result != CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
	int count, failures = 0;

	if (argc == 2 && strcmp(argv[1], "child") == 0)
		return child();
	count = argc == 2 ? atoi(argv[1]) : 20;
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();
		int status = 1;

		if (pid == 0) {
			execl("/proc/self/exe", argv[0], "child", (char *)NULL);
			_exit(127);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			failures++;
	}
	printf("%d of %d processes failed\n", failures, count);
	return failures != 0;
}
