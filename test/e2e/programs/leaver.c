/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaver BYTES: allocates BYTES of device 0, forks a child, prints "holds", and waits, as does the
 * child, which survives it. Prints the driver's result if the allocation fails.
 *
 * leaver: prints how many bytes of device 0 are in use, by NVML.
 */
#include "../../../interceptor/nvml_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *library;

static void *entry(const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		printf("no %s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}

static int say_used(void)
{
	int (*init)(void), (*by_index)(unsigned int, nvmlDevice_t *),
	    (*memory_of)(nvmlDevice_t, nvmlMemory_t *);
	nvmlDevice_t device;
	nvmlMemory_t memory;

	library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	*(void **)&init = entry("nvmlInit_v2");
	*(void **)&by_index = entry("nvmlDeviceGetHandleByIndex_v2");
	*(void **)&memory_of = entry("nvmlDeviceGetMemoryInfo");
	if (init() || by_index(0, &device) || memory_of(device, &memory))
		return 1;
	printf("%llu\n", (unsigned long long)memory.used);
	return 0;
}

int main(int count, char **words)
{
	int (*init)(unsigned int), (*retain)(void **, int), (*use)(void *),
	    (*alloc)(unsigned long long *, size_t);
	unsigned long long pointer;
	void *context;
	int result;

	if (count < 2)
		return say_used();
	library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&init = entry("cuInit");
	*(void **)&retain = entry("cuDevicePrimaryCtxRetain");
	*(void **)&use = entry("cuCtxSetCurrent");
	*(void **)&alloc = entry("cuMemAlloc_v2");
	if ((result = init(0)) || (result = retain(&context, 0)) || (result = use(context)) ||
	    (result = alloc(&pointer, strtoull(words[1], NULL, 10)))) {
		printf("%d\n", result);
		return 1;
	}
	if (fork() != 0) {
		puts("holds");
		fflush(stdout);
	}
	for (;;)
		pause();
}
