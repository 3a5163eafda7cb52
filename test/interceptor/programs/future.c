/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future WAY...: look for functions, in turn, and take memory by what the last one found; then wait
 * for driver truth to count it. Linked with libcuda; run in a slice. Ways:
 *
 *   procaddr, old   cuMemAlloc by cuGetProcAddress: CUDA 99.0's, or 12.0's
 *   dlsym           cuMemAlloc_v99
 *   unlisted        cuLogicalMemAlloc by cuGetProcAddress: no table has the name
 *   unlisted-dlsym  the same by dlsym
 *   tells           cuLogicalGetLimit by cuGetProcAddress: no table has the name either
 *   tells-dlsym     the same by dlsym
 *   unlisted-next   the same by dlsym for the next object
 *   others          a function without a hook, and a name without a function
 *
 * Prints what is wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include "driver.h"

#include "charged.h"

#include <dlfcn.h>
#include <string.h>

static void *find(const char *way)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found = NULL;
	int status;

	if (strcmp(way, "procaddr") == 0)
		cuGetProcAddress_v2("cuMemAlloc", &found, 99000, 0, &status);
	else if (strcmp(way, "old") == 0)
		cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status);
	else if (strcmp(way, "dlsym") == 0)
		found = dlsym(cuda, "cuMemAlloc_v99");
	else if (strcmp(way, "unlisted") == 0)
		cuGetProcAddress_v2("cuLogicalMemAlloc", &found, 99000, 0, &status);
	else if (strcmp(way, "unlisted-dlsym") == 0)
		found = dlsym(cuda, "cuLogicalMemAlloc");
	else if (strcmp(way, "unlisted-next") == 0)
		found = dlsym(RTLD_NEXT, "cuLogicalMemAlloc");
	else if (strcmp(way, "tells") == 0)
		cuGetProcAddress_v2("cuLogicalGetLimit", &found, 99000, 0, &status);
	else if (strcmp(way, "tells-dlsym") == 0)
		found = dlsym(cuda, "cuLogicalGetLimit");
	else {
		cuGetProcAddress_v2("cuLaunchKernel", &found, 99000, 0, &status);
		cuGetProcAddress_v2("cuStreamIsCapturing", &found, 99000, 0, &status);
		cuGetProcAddress_v2("cuStreamGetFlags", &found, 99000, 0, &status);
		cuGetProcAddress_v2("cuMemAllocHost", &found, 99000, 0, &status);
		found = dlsym(cuda, "cuMemAlloc_v98") ?: dlsym(cuda, "cuMemAllo");
	}
	dlclose(cuda);
	return found;
}

int main(int argc, char **argv)
{
	/* The older function uses two of the arguments and ignores the third. */
	CUresult (*allocate)(CUdeviceptr *, size_t, unsigned long long) = NULL;
	CUdeviceptr pointer;
	size_t before;

	for (int i = 1; i < argc; i++) {
		*(void **)&allocate = find(argv[i]);
		if (!allocate != (strcmp(argv[i], "others") == 0)) {
			printf("%s: found %p\n", argv[i], *(void **)&allocate);
			return 1;
		}
	}
	if (!allocate)
		return 0;
	use_primary();
	before = left();
	if (allocate(&pointer, 256 * MIB, 0)) {
		printf("refused\n");
		return 1;
	}
	for (int tenths = 0; before - left() < 256 * MIB; tenths++) {
		if (tenths > 300) {
			printf("%zu bytes less free after 30 s\n", before - left());
			return 1;
		}
		usleep(100000);
	}
	return 0;
}
