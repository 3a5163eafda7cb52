/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environ SECONDS: one thread changes the environment all the time, as single-threaded programs
 * may, while other threads are refused memory with GPUSLICE_DEBUG=1. Only the program itself may
 * read the environment then. Exits 0 unless it crashes.
 */
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static CUcontext context;
static time_t end;
static size_t total;

static void *change(void *argument)
{
	char name[32];

	while (time(NULL) < end) {
		/* Enough for the C library to reallocate it several times. */
		for (int i = 0; i < 4000; i++) {
			snprintf(name, sizeof(name), "VARIABLE_%d", i);
			setenv(name, "value", 1);
		}
		clearenv();
	}
	return argument;
}

static void *run_into_it(void *argument)
{
	unsigned long refusals = 0;

	cuCtxSetCurrent(context);
	while (time(NULL) < end) {
		CUdeviceptr pointer;

		if (cuMemAlloc_v2(&pointer, total) == CUDA_ERROR_OUT_OF_MEMORY)
			refusals++;
	}
	*(unsigned long *)argument = refusals;
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long refusals[4] = {0};
	pthread_t threads[5];
	CUdeviceptr pointer;
	size_t available;

	if (!getenv("GPUSLICE_DEBUG")) {
		setenv("GPUSLICE_DEBUG", "1", 1);
		execl("/proc/self/exe", argv[0], argc > 1 ? argv[1] : "3", (char *)NULL);
	}
	end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 3);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuMemGetInfo_v2(&available, &total))
		return 1;
	/* The test reads the first message only. */
	if (cuMemAlloc_v2(&pointer, total) != CUDA_ERROR_OUT_OF_MEMORY ||
	    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO) != STDERR_FILENO)
		return 1;
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, run_into_it, &refusals[i]);
	pthread_create(&threads[4], NULL, change, NULL);
	for (int i = 0; i < 5; i++)
		pthread_join(threads[i], NULL);
	printf("%lu refusals\n", refusals[0] + refusals[1] + refusals[2] + refusals[3]);
	return !refusals[0];
}
