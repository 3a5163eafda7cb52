/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways around the interceptor, which docs/evidence/security.md names.
 *
 * around              prints whether the interceptor is loaded: "loaded" or "alone"
 * around BYTES DRIVER FUNCTION=OFFSET…
 *                     loads a copy of the driver's library and calls its functions by offset,
 *                     since a look-up by name could be intercepted; allocates BYTES, prints
 *                     "holds" or "nothing", and stays
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int loaded(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "libgpuslice"))
			return puts("loaded");
	return puts("alone");
}

#ifdef ALONE /* a static program has no loader */
int main(void)
{
	return loaded() < 0;
}
#else
static struct link_map *driver;

static uintptr_t function(char **names, const char *name)
{
	size_t length = strlen(name);

	for (; *names; names++)
		if (!strncmp(*names, name, length) && (*names)[length] == '=')
			return driver->l_addr + strtoull(*names + length + 1, NULL, 10);
	exit(3);
}

int main(int argc, char **argv)
{
	uint64_t p, bytes;
	void *context;

	if (argc < 3)
		return loaded() < 0;
	bytes = strtoull(argv[1], NULL, 10);
	driver = dlopen(argv[2], RTLD_NOW);
	if (!driver) {
		puts(dlerror());
		return 1;
	}
	if (((int (*)(unsigned))function(argv, "cuInit"))(0) ||
	    ((int (*)(void **, int))function(argv, "cuDevicePrimaryCtxRetain"))(&context, 0) ||
	    ((int (*)(void *))function(argv, "cuCtxSetCurrent"))(context) ||
	    ((int (*)(uint64_t *, size_t))function(argv, "cuMemAlloc_v2"))(&p, bytes)) {
		puts("nothing");
		return 1;
	}
	puts("holds");
	fflush(stdout);
	for (;;)
		pause();
}
#endif
