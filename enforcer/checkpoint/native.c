/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/* CUcheckpointLockArgs */
struct lock_arguments {
	unsigned int timeout_ms;
	unsigned int reserved0;
	uint64_t reserved1[7];
};

static struct {
	int (*init)(unsigned int);
	int (*error_name)(int, const char **);
	int (*state)(int, int *);
	int (*lock)(int, struct lock_arguments *);
	int (*checkpoint)(int, void *);
	int (*restore)(int, void *);
	int (*unlock)(int, void *);
} driver;

const char *checkpoint_load(void)
{
	static const struct {
		const char *name;
		void *function;
	} needed[] = {
	    {"cuInit", &driver.init},
	    {"cuGetErrorName", &driver.error_name},
	    {"cuCheckpointProcessGetState", &driver.state},
	    {"cuCheckpointProcessLock", &driver.lock},
	    {"cuCheckpointProcessCheckpoint", &driver.checkpoint},
	    {"cuCheckpointProcessRestore", &driver.restore},
	    {"cuCheckpointProcessUnlock", &driver.unlock},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return dlerror();
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		void *found = dlsym(library, needed[i].name);

		if (!found)
			return needed[i].name;
		*(void **)needed[i].function = found;
	}
	return NULL;
}

int checkpoint_init(void)
{
	return driver.init(0);
}

int checkpoint_state(int pid, int *state)
{
	return driver.state(pid, state);
}

int checkpoint_lock(int pid, unsigned int timeout_ms)
{
	struct lock_arguments arguments = {.timeout_ms = timeout_ms};

	return driver.lock(pid, &arguments);
}

int checkpoint_checkpoint(int pid)
{
	return driver.checkpoint(pid, NULL);
}

int checkpoint_restore(int pid)
{
	return driver.restore(pid, NULL);
}

int checkpoint_unlock(int pid)
{
	return driver.unlock(pid, NULL);
}

const char *checkpoint_error_name(int result)
{
	const char *name = NULL;

	return driver.error_name(result, &name) == 0 && name ? name : "an unknown error";
}
