/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changer: holds 1 MiB of VRAM of device 0. From SIGUSR1 on it holds 2 MiB more each 0.9 seconds,
 * up to 20 times, and then 1 MiB again.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define TIMES 20

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned), (*retain)(void **, int), (*use)(void *);
	int (*alloc)(unsigned long long *, size_t), (*release)(unsigned long long);
	unsigned long long first, more[TIMES];
	sigset_t begin;
	int caught;

	if (!driver)
		return 1;
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&use = dlsym(driver, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
	*(void **)&release = dlsym(driver, "cuMemFree_v2");
	sigemptyset(&begin);
	sigaddset(&begin, SIGUSR1);
	sigprocmask(SIG_BLOCK, &begin, NULL);
	if (init(0) || retain(&context, 0) || use(context) || alloc(&first, 1 << 20) ||
	    sigwait(&begin, &caught))
		return 1;
	for (int i = 0;; i = (i + 1) % TIMES) {
		usleep(900000);
		if (alloc(&more[i], 2 << 20))
			return 1;
		for (int k = 0; i == TIMES - 1 && k < TIMES; k++)
			if (release(more[k]))
				return 1;
	}
}
