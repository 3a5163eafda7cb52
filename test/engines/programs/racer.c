/* SPDX-License-Identifier: Apache-2.0 */
/* racer GO STEP: create a context on device 0, print "ready", and once the file GO exists allocate
 * STEP bytes of VRAM again and again until refused. Then print "took N" and keep them until killed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *driver;

static int (*find(const char *name))()
{
	void *function = dlsym(driver, name);
	int (*call)() = NULL;

	if (function == NULL) {
		printf("no %s\n", name);
		exit(1);
	}
	memcpy(&call, &function, sizeof(call));
	return call;
}

int main(int argc, char **argv)
{
	unsigned long long where, taken = 0;
	int device, status;
	void *context;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 3 || driver == NULL) {
		printf("usage: racer GO STEP, with libcuda.so.1\n");
		return 1;
	}
	int (*alloc)(unsigned long long *, size_t) =
	    (int (*)(unsigned long long *, size_t))find("cuMemAlloc_v2");

	if ((status = ((int (*)(unsigned int))find("cuInit"))(0)) != 0 ||
	    (status = ((int (*)(int *, int))find("cuDeviceGet"))(&device, 0)) != 0 ||
	    (status = ((int (*)(void **, int))find("cuDevicePrimaryCtxRetain"))(&context,
	                                                                        device)) != 0 ||
	    (status = ((int (*)(void *))find("cuCtxSetCurrent"))(context)) != 0) {
		printf("failed: %d\n", status);
		return 1;
	}
	printf("ready\n");
	while (access(argv[1], F_OK) != 0)
		usleep(500);
	while ((status = alloc(&where, strtoull(argv[2], NULL, 10))) == 0)
		taken++;
	printf(status == 2 ? "took %llu\n" : "took %llu and failed\n", taken);
	for (;;)
		pause();
}
