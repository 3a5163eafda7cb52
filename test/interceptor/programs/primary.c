/* SPDX-License-Identifier: Apache-2.0 */
/*
 * primary THREADS ROUNDS: threads retain, release and reset the primary context concurrently, and
 * create and destroy contexts of their own. After each kind of race only the main thread's context
 * is charged, and all that is left can be allocated. Exits 0 if so.
 */
#include "driver.h"

#include "charged.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define MOST 64

static pthread_barrier_t barrier;
static int rounds;
static long long slack; /* the driver's own memory may vary by this much */

static void use(CUcontext context)
{
	CUdeviceptr pointer;

	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc_v2(&pointer, 4 * MIB));
	OK(cuMemFree_v2(pointer));
	OK(cuCtxSetCurrent(NULL));
}

/* All retain an inactive context at the same instant; the last release makes it inactive. */
static void *retain_against_retain(void *argument)
{
	CUcontext context;

	for (int i = 0; i < rounds; i++) {
		pthread_barrier_wait(&barrier);
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		use(context);
		pthread_barrier_wait(&barrier);
		OK(cuDevicePrimaryCtxRelease_v2(0));
	}
	return argument;
}

/* Without synchronization, so a release that deactivates the context meets a retain that activates
 * it. */
static void *release_against_retain(void *argument)
{
	CUcontext context;

	for (int i = 0; i < 4 * rounds; i++) {
		OK(cuDevicePrimaryCtxRetain(&context, 0));
		use(context);
		OK(cuDevicePrimaryCtxRelease_v2(0));
	}
	return argument;
}

/* A reset destroys what others have retained, and a retain creates it again. It is not used, since
 * it may be gone at any moment. */
static void *reset_against_retain(void *argument)
{
	bool resets = (uintptr_t)argument % 2;
	CUcontext context;

	for (int i = 0; i < 2 * rounds; i++) {
		if (resets)
			OK(cuDevicePrimaryCtxReset_v2(0));
		else
			OK(cuDevicePrimaryCtxRetain(&context, 0));
	}
	return NULL;
}

/* A handle that one thread destroyed may be reused by another thread's create. */
static void *create_against_destroy(void *argument)
{
	CUcontext context;

	for (int i = 0; i < rounds; i++) {
		CUdeviceptr pointer;
		CUresult result = cuCtxCreate_v2(&context, 0, 0);

		if (result == CUDA_ERROR_OUT_OF_MEMORY)
			continue; /* the others' contexts leave no room */
		expect("create", result, CUDA_SUCCESS);
		OK(cuMemAlloc_v2(&pointer, 4 * MIB));
		expect("destroy", cuCtxDestroy_v2(context), CUDA_SUCCESS);
	}
	return argument;
}

static const struct {
	const char *name;
	void *(*run)(void *);
} races[] = {{"retain against retain", retain_against_retain},
             {"release against retain", release_against_retain},
             {"reset against retain", reset_against_retain},
             {"create against destroy", create_against_destroy}};

/* Driver truth may charge a transient between two samples, for a second. */
static bool is_back(size_t before)
{
	for (int tries = 0; tries < 500; tries++) {
		if (llabs((long long)left() - (long long)before) <= slack)
			return true;
		usleep(10000);
	}
	return false;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[1]) : 8;
	pthread_t threads[MOST];
	char name[128] = "";
	CUcontext own;
	size_t before;

	rounds = argc > 2 ? atoi(argv[2]) : 100;
	if (count < 2 || count > MOST || cuInit(0) || cuCtxCreate_v2(&own, 0, 0) ||
	    cuDeviceGetName(name, sizeof(name), 0) ||
	    pthread_barrier_init(&barrier, NULL, (unsigned int)count))
		return 1;
	if (!strstr(name, "(simulated)"))
		slack = 16 * (long long)MIB;
	sleep(2); /* for a sample of this context */
	before = left();
	for (size_t race = 0; race < sizeof(races) / sizeof(*races); race++) {
		CUdeviceptr pointer = 0;

		for (int i = 0; i < count; i++)
			pthread_create(&threads[i], NULL, races[race].run,
			               (void *)(uintptr_t)(i + 1));
		for (int i = 0; i < count; i++)
			pthread_join(threads[i], NULL);
		/* Releases the retains that the resets left, until the driver says that none is
		 * left. */
		while (cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS)
			;
		OK(cuCtxSetCurrent(own));
		if (!is_back(before)) {
			printf("%s: %lld bytes too many are charged\n", races[race].name,
			       (long long)before - (long long)left());
			wrong = 1;
		}
		expect(races[race].name, cuMemAlloc_v2(&pointer, left() & ~(2 * MIB - 1)),
		       CUDA_SUCCESS);
		if (cuMemAlloc_v2(&pointer, 2 * MIB) != CUDA_ERROR_OUT_OF_MEMORY) {
			printf("%s: more than the quota is granted\n", races[race].name);
			wrong = 1;
		}
		if (wrong)
			break;
		OK(cuCtxDestroy_v2(own));
		OK(cuCtxCreate_v2(&own, 0, 0));
		if (!is_back(before)) {
			printf("%s: another context has %lld bytes less\n", races[race].name,
			       (long long)before - (long long)left());
			wrong = 1;
		}
	}
	if (!wrong)
		printf("%zu races of %d threads: nothing is left of them\n",
		       sizeof(races) / sizeof(*races), count);
	return wrong;
}
