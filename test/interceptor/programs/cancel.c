/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread is cancelled in its first CUDA call, while the enforcer is slow to answer. Another
 * thread's call must return nevertheless, with any result. Prints how long that took, and exits 0
 * if both ended in time; otherwise SIGALRM ends the program.
 */
#include "clock.h"
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *call(void *argument)
{
	CUcontext context;

	(void)cuDevicePrimaryCtxRetain(&context, 0);
	/* A cancellation that was postponed must not be lost. */
	for (;;)
		usleep(10000);
	return argument;
}

static void *call_once(void *argument)
{
	CUcontext context;

	(void)cuDevicePrimaryCtxRetain(&context, 0);
	return argument;
}

int main(void)
{
	pthread_t first, second;
	void *ended = NULL;
	double start;

	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(40);
	if (cuInit(0) || pthread_create(&first, NULL, call, NULL))
		return 1;
	usleep(300000);
	start = now();
	pthread_cancel(first);
	pthread_join(first, &ended);
	printf("cancelled after %.1f s\n", now() - start);
	if (ended != PTHREAD_CANCELED)
		return 1;
	start = now();
	if (pthread_create(&second, NULL, call_once, NULL))
		return 1;
	pthread_join(second, NULL);
	printf("another thread's call ended after %.1f s\n", now() - start);
	return 0;
}
