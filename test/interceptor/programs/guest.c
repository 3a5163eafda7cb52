/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libraries that scopes.c opens, one per macro:
 *
 *   LINKED   linked with libcuda and libnvidia-ml
 *   OTHER    named libcuda.so.1, with two functions of its own
 *   neither  unrelated to the driver
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#if defined(OTHER)
int cuMemAlloc_v2(unsigned long long *pointer, size_t size);
int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
	(void)pointer;
	(void)size;
	return 777;
}

int cuOfNobodyElse(void);
int cuOfNobodyElse(void)
{
	return 777;
}
#else
void *ask(void *handle, const char *name);
const char *failure(void);
void *open_by_own(const char *path);
unsigned int new_key(const void *value);

/* Not tail calls, which would make scopes.c the caller. */
void *ask(void *handle, const char *name)
{
	void *volatile found = dlsym(handle, name);

	return found;
}

const char *failure(void)
{
	return dlerror();
}

void *open_by_own(const char *path)
{
	void *volatile opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	return opened;
}

unsigned int new_key(const void *value)
{
	pthread_key_t key = 0;

	if (pthread_key_create(&key, NULL))
		return ~0u;
	pthread_setspecific(key, value);
	return key;
}
#endif

#if defined(LINKED)
#include "driver.h"

CUresult cuDeviceGet(CUdevice *, int);

void *address(void);
size_t shown(void);
size_t shown_by_nvml(void);

void *address(void)
{
	return (void *)cuMemAlloc_v2;
}

size_t shown(void)
{
	CUdevice device;
	size_t total = 0;

	if (cuInit(0) || cuDeviceGet(&device, 0) || cuDeviceTotalMem_v2(&total, device))
		return 0;
	return total;
}

size_t shown_by_nvml(void)
{
	nvmlMemory_t memory = {0};
	nvmlDevice_t device;

	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) ||
	    nvmlDeviceGetMemoryInfo(device, &memory))
		return 0;
	return (size_t)memory.total;
}
#endif
