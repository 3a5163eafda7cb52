/* SPDX-License-Identifier: Apache-2.0 */
/* vandal SEED: a process of a container that allocates a MiB of GPU memory, overwrites all of its
 * slice's ledger with random bytes, and allocates again. Prints "refused" if that fails, and stays.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*allocate)(uint64_t *, size_t);

static void *symbol(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *found = driver ? dlsym(driver, name) : NULL;

	if (!found) {
		printf("no %s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}

/* Find the ledger: the mapping of that name. */
static uint64_t *ledger(size_t *words)
{
	char line[512];
	unsigned long from, to;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "/memfd:gpuslice") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
			fclose(maps);
			*words = (to - from) / 8;
			return (uint64_t *)from;
		}
	}
	printf("no ledger is mapped\n");
	exit(1);
}

int main(int argc, char **argv)
{
	int (*init)(unsigned int) = symbol("cuInit");
	int (*retain)(void **, int) = symbol("cuDevicePrimaryCtxRetain");
	int (*current)(void *) = symbol("cuCtxSetCurrent");
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) | 1 : 1, p, *page;
	size_t words;
	void *context;

	allocate = symbol("cuMemAlloc_v2");
	if (init(0) || retain(&context, 0) || current(context) || allocate(&p, 1 << 20)) {
		printf("it got nothing to begin with\n");
		return 1;
	}
	page = ledger(&words);
	for (size_t i = 0; i < words; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		page[i] = seed * 0x9e3779b97f4a7c15u;
	}
	/* The enforcer notices the page within about a second. Until then any answer may come. */
	for (int tries = 0; tries < 3000 && allocate(&p, 1 << 20) == 0; tries++)
		usleep(10000);
	puts(allocate(&p, 1 << 20) ? "refused" : "granted");
	fflush(stdout);
	for (;;)
		pause();
}
