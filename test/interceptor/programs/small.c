/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small SECONDS: makes and frees small allocations without a pause, and checks the slice's free
 * bytes after each. A small allocation is charged after the driver's call (block.h): nothing else
 * may charge the driver's bytes before that. Exits 0 if each check was exact.
 */
#include "driver.h"

#include "charged.h"

#include <time.h>

/* The free bytes once they are stable: a context is charged a moment after its creation. */
static size_t settled(void)
{
	size_t now = left();

	for (int same = 0; same < 50; same++) {
		size_t before = now;

		usleep(10 * 1000);
		now = left();
		if (now != before)
			same = 0;
	}
	return now;
}

int main(int argc, char **argv)
{
	unsigned long looks = 0, inexact = 0;
	time_t end;

	use_primary();
	base = settled();
	end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);
	while (time(NULL) < end) {
		CUdeviceptr first, second;

		MUST(cuMemAlloc_v2(&first, MIB));
		MUST(cuMemAlloc_v2(&second, MIB)); /* in the same block */
		looks++;
		if (base - left() != 2 * MIB)
			inexact++;
		MUST(cuMemFree_v2(first));
		MUST(cuMemFree_v2(second));
	}
	printf("%lu looks, %lu wrong\n", looks, inexact);
	return looks == 0 || inexact != 0;
}
