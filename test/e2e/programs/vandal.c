/* SPDX-License-Identifier: Apache-2.0 */
/* vandal SEED: a process of a container that allocates a MiB of GPU memory, overwrites all of its
 * slice's ledger with random bytes, and allocates again. Prints "refused" if that fails, and stays.
 */
#define _GNU_SOURCE
#include "driver.h"

#include "charged.h"

#include <stdint.h>
#include <string.h>

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
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) | 1 : 1, *page;
	CUdeviceptr p;
	size_t words;

	use_primary();
	MUST(cuMemAlloc_v2(&p, MIB));
	page = ledger(&words);
	for (size_t i = 0; i < words; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		page[i] = seed * 0x9e3779b97f4a7c15u;
	}
	/* The enforcer notices the page within about a second. Until then any answer may come. */
	for (int tries = 0; tries < 3000 && cuMemAlloc_v2(&p, MIB) == CUDA_SUCCESS; tries++)
		usleep(10000);
	puts(cuMemAlloc_v2(&p, MIB) ? "refused" : "granted");
	fflush(stdout);
	for (;;)
		pause();
}
