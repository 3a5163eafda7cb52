/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asker HELD ASKED TIMES [FILE]: allocate HELD bytes of VRAM on device 0, then TIMES times ASKED
 * bytes more, print how many of these were refused ("refused N"), and exit. With FILE, create it
 * once HELD is held, and wait until it is removed.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	CUcontext context;
	CUdeviceptr pointer;
	long refused = 0;

	if (argc < 4 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuCtxSetCurrent(context) || cuMemAlloc_v2(&pointer, strtoull(argv[1], NULL, 10)))
		return 1;
	if (argc > 4) {
		FILE *file = fopen(argv[4], "w");

		if (!file || fclose(file))
			return 1;
		while (access(argv[4], F_OK) == 0)
			usleep(1000);
	}
	for (long i = atol(argv[3]); i > 0; i--)
		refused += cuMemAlloc_v2(&pointer, strtoull(argv[2], NULL, 10)) ==
		           CUDA_ERROR_OUT_OF_MEMORY;
	printf("refused %ld\n", refused);
	return 0;
}
