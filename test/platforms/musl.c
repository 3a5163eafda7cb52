/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for musl that does what the interceptor might disturb: it looks symbols up, has a
 * thread and a child, and finds no CUDA driver, which is no fault. It prints one line and ends with
 * 0 if all is as it should be. With an argument it is its own child, and ends with 7. DYNAMIC: it
 * is not linked statically.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *copy(void *argument)
{
	return strdup(argument);
}

static int fail(const char *what)
{
	printf("wrong: %s\n", what);
	return 1;
}

int main(int argc, char **argv)
{
	pthread_t id;
	void *copied = NULL;
	int status = 0;
	pid_t child;

	(void)argv;
	if (argc > 1)
		return 7;
#ifdef DYNAMIC
	if (dlsym(RTLD_DEFAULT, "puts") != (void *)puts)
		return fail("dlsym with RTLD_DEFAULT");
	if (dlsym(RTLD_NEXT, "strdup") != (void *)strdup)
		return fail("dlsym with RTLD_NEXT");
	if (dlsym(dlopen(NULL, RTLD_NOW), "main") != (void *)main)
		return fail("dlsym on the program");
	if (dlsym(RTLD_DEFAULT, "no such function") || !dlerror())
		return fail("dlsym of what is not there");
#endif
	if (dlopen("libcuda.so.1", RTLD_NOW) || !dlerror())
		return fail("dlopen of what is not there");
	if (pthread_create(&id, NULL, copy, "text") != 0 || pthread_join(id, &copied) != 0 ||
	    !copied || strcmp(copied, "text") != 0)
		return fail("a thread");
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "musl", "child", (char *)NULL);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
	    WEXITSTATUS(status) != 7)
		return fail("a child");
	free(copied);
	puts("all well");
	return 0;
}
