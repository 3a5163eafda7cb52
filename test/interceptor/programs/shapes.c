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

#include "charged.h"

#include <sys/types.h>

#define MOST 64

static void take(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels, int count)
{
	CUmipmappedArray mipmapped[MOST];
	CUarray plain[MOST];
	size_t before = left(), one = 0;

	for (int i = 0; i < count; i++) {
		if (levels)
			MUST(cuMipmappedArrayCreate(&mipmapped[i], shape, levels));
		else
			MUST(cuArray3DCreate_v2(&plain[i], shape));
		if (i == 0)
			one = before - left();
	}
	printf("%zu %zu\n", one, before - left());
	for (int i = 0; i < count; i++) {
		if (levels)
			MUST(cuMipmappedArrayDestroy(mipmapped[i]));
		else
			MUST(cuArrayDestroy(plain[i]));
	}
	/* The driver held more for the arrays' shared blocks, which stays charged until the next
	 * sample. */
	if (!left_becomes(before)) {
		printf("%zd bytes stay charged after the last is destroyed\n",
		       (ssize_t)(before - left()));
		exit(1);
	}
}

int main(void)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};
	unsigned int format, levels;
	int count;

	use_primary();
	while (scanf("%zu %zu %zu %u %u %u %u %d", &shape.Width, &shape.Height, &shape.Depth,
	             &format, &shape.NumChannels, &shape.Flags, &levels, &count) == 8) {
		shape.Format = (int)format;
		if (count < 1 || count > MOST)
			return 1;
		take(&shape, levels, count);
	}
	return 0;
}
