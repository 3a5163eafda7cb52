/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices: prints the UUIDs of the devices that CUDA shows, one per line, from cuda:0 on; or the
 * result of cuInit, if that fails.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned), (*count_devices)(int *), (*uuid_of)(unsigned char *, int);
	int count, result;

	if (!driver)
		return 1;
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&count_devices = dlsym(driver, "cuDeviceGetCount");
	*(void **)&uuid_of = dlsym(driver, "cuDeviceGetUuid_v2");
	result = init(0);
	if (result != 0) {
		printf("cuInit: %d\n", result);
		return 1;
	}
	if (count_devices(&count) != 0)
		return 1;
	for (int i = 0; i < count; i++) {
		unsigned char uuid[16];

		if (uuid_of(uuid, i) != 0)
			return 1;
		printf("GPU-");
		for (int j = 0; j < 16; j++)
			printf("%s%02x", j == 4 || j == 6 || j == 8 || j == 10 ? "-" : "", uuid[j]);
		printf("\n");
	}
	return 0;
}
