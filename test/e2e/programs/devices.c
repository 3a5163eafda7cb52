/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices: prints the UUIDs of the devices that CUDA shows, one per line, from cuda:0 on; or the
 * result of cuInit, if that fails.
 */
#include "driver.h"

#include <stdio.h>

int main(void)
{
	CUresult result = cuInit(0);
	int count;

	if (result != CUDA_SUCCESS) {
		printf("cuInit: %d\n", result);
		return 1;
	}
	if (cuDeviceGetCount(&count))
		return 1;
	for (int i = 0; i < count; i++) {
		CUuuid uuid;

		if (cuDeviceGetUuid_v2(&uuid, i))
			return 1;
		printf("GPU-");
		for (int j = 0; j < 16; j++)
			printf("%s%02x", j == 4 || j == 6 || j == 8 || j == 10 ? "-" : "",
			       (unsigned char)uuid.bytes[j]);
		printf("\n");
	}
	return 0;
}
