/* SPDX-License-Identifier: Apache-2.0 */
/* plain: typical startup of a program, with or without a driver: threads, dlopen, look-ups, cuInit.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *work(void *argument)
{
	return argument;
}

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int) = NULL;
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, NULL) || pthread_join(thread, NULL))
		return 1;
	if (driver)
		*(void **)&init = dlsym(driver, "cuInit");
	if (init)
		printf("cuInit: %d\n", init(0));
	free(malloc(100));
	return dlsym(NULL, "malloc") == NULL;
}
