/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "driver.h"

#include "elf_symbol.h"

#include <dlfcn.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct driver own, program;
const struct driver *way = &program;

void must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "cost: %s failed with error %d\n", what, result);
		exit(1);
	}
}

void driver_find_program(void *library, const char *name, void *where)
{
	*(void **)where = dlsym(library, name);
	if (!*(void **)where) {
		fprintf(stderr, "cost: the library has no %s\n", name);
		exit(1);
	}
}

static void find_both(void *library, const struct elf_object *object, const char *name,
                      size_t offset, bool needed)
{
	void **by_program = (void **)((char *)&program + offset);
	void **by_own = (void **)((char *)&own + offset);

	if (needed)
		driver_find_program(library, name, by_program);
	else
		*by_program = dlsym(library, name);
	*by_own = elf_find_symbol(object, name);
}

void driver_find(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml;
	struct elf_object object;

	if (!cuda || !elf_find_object("libcuda.so.1", &object)) {
		fprintf(stderr, "cost: %s\n", dlerror());
		exit(1);
	}
#define NEEDED(member, name, arguments)                                                            \
	find_both(cuda, &object, name, offsetof(struct driver, member), true);
#define OPTIONAL(member, name, arguments)                                                          \
	find_both(cuda, &object, name, offsetof(struct driver, member), false);
	DRIVER_FUNCTIONS(NEEDED, OPTIONAL)
#undef NEEDED
#undef OPTIONAL

	nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!nvml || !elf_find_object("libnvidia-ml.so.1", &object))
		return;
#define OPTIONAL(member, name, arguments)                                                          \
	find_both(nvml, &object, name, offsetof(struct driver, member), false);
	NVML_FUNCTIONS(OPTIONAL)
#undef OPTIONAL
}

void driver_begin(void)
{
	uint64_t keep_all = UINT64_MAX;
	CUmemoryPool pool;
	CUcontext context;

	way = &program;
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	CALL(cuDeviceGetDefaultMemPool, &pool, 0);
	CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all);
}

pid_t start_again(const char *const arguments[], int output)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int error;

	posix_spawn_file_actions_init(&actions);
	if (output >= 0)
		posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
	/* execve() declares strings that it does not change as changeable. */
	error =
	    posix_spawn(&pid, "/proc/self/exe", &actions, NULL, (char *const *)arguments, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (error) {
		fprintf(stderr, "cost: cannot start another process: %s\n", strerror(error));
		exit(1);
	}
	return pid;
}
