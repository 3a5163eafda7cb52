/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of arrays. Reads shapes, a line each:
 *
 *   WIDTH HEIGHT DEPTH FORMAT CHANNELS FLAGS LEVELS COUNT
 *
 * (LEVELS 0: not mipmapped) and prints for each how many fewer bytes are free with one such array,
 * and with COUNT of them: in a slice the interceptor's charge, outside it the driver's memory.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define MOST 64

static void must(CUresult result, const char *what)
{
	if (result == CUDA_SUCCESS)
		return;
	printf("%s: CUDA error %d\n", what, result);
	exit(1);
}

static size_t available(void)
{
	size_t bytes, total;

	must(cuMemGetInfo_v2(&bytes, &total), "cuMemGetInfo");
	return bytes;
}

static void take(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels, int count)
{
	CUmipmappedArray mipmapped[MOST];
	CUarray plain[MOST];
	size_t before = available(), one = 0;

	for (int i = 0; i < count; i++) {
		if (levels)
			must(cuMipmappedArrayCreate(&mipmapped[i], shape, levels),
			     "cuMipmappedArrayCreate");
		else
			must(cuArray3DCreate_v2(&plain[i], shape), "cuArray3DCreate");
		if (i == 0)
			one = before - available();
	}
	printf("%zu %zu\n", one, before - available());
	for (int i = 0; i < count; i++) {
		if (levels)
			must(cuMipmappedArrayDestroy(mipmapped[i]), "cuMipmappedArrayDestroy");
		else
			must(cuArrayDestroy(plain[i]), "cuArrayDestroy");
	}
	/* The driver held more for the arrays' shared blocks, which stays charged until the next
	 * sample. */
	for (int tries = 0; available() != before && tries < 100; tries++)
		usleep(100000);
	if (available() != before) {
		printf("%zd bytes stay charged after the last is destroyed\n",
		       (ssize_t)(before - available()));
		exit(1);
	}
}

int main(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};
	unsigned int format, levels;
	CUcontext context;
	int count;

	must(cuInit(0), "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	while (scanf("%zu %zu %zu %u %u %u %u %d", &shape.Width, &shape.Height, &shape.Depth,
	             &format, &shape.NumChannels, &shape.Flags, &levels, &count) == 8) {
		shape.Format = (int)format;
		if (count < 1 || count > MOST)
			return 1;
		take(&shape, levels, count);
	}
	return 0;
}
