/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asker HELD ASKED TIMES [FILE]: allocate HELD bytes of VRAM on device 0, then TIMES times ASKED
 * bytes more, print how many of these were refused ("refused N"), and exit. With FILE, create it
 * once HELD is held, and wait until it is removed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OUT_OF_MEMORY 2

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned), (*retain)(void **, int), (*use)(void *);
	int (*alloc)(unsigned long long *, size_t);
	unsigned long long pointer;
	long refused = 0;

	if (argc < 4 || !driver)
		return 1;
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&use = dlsym(driver, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
	if (init(0) || retain(&context, 0) || use(context) ||
	    alloc(&pointer, strtoull(argv[1], NULL, 10)))
		return 1;
	if (argc > 4) {
		FILE *file = fopen(argv[4], "w");

		if (!file || fclose(file))
			return 1;
		while (access(argv[4], F_OK) == 0)
			usleep(1000);
	}
	for (long i = atol(argv[3]); i > 0; i--)
		refused += alloc(&pointer, strtoull(argv[2], NULL, 10)) == OUT_OF_MEMORY;
	printf("refused %ld\n", refused);
	return 0;
}
