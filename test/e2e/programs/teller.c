/* SPDX-License-Identifier: Apache-2.0 */
/*
 * teller: answers each line on its standard input about device 0. "info": "FREE of TOTAL"
 * (cuMemGetInfo). "total": cuDeviceTotalMem's figure. A number of bytes, which it allocates and
 * keeps: "ok" or "refused".
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_OF_MEMORY 2

int main(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int (*init)(unsigned), (*retain)(void **, int), (*use)(void *);
	int (*alloc)(unsigned long long *, size_t), (*info)(size_t *, size_t *);
	int (*total_of)(size_t *, int);
	char line[64];

	if (!driver)
		return 1;
	*(void **)&init = dlsym(driver, "cuInit");
	*(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&use = dlsym(driver, "cuCtxSetCurrent");
	*(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
	*(void **)&info = dlsym(driver, "cuMemGetInfo_v2");
	*(void **)&total_of = dlsym(driver, "cuDeviceTotalMem_v2");
	if (init(0) || retain(&context, 0) || use(context))
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long long pointer;
		size_t left = 0, total = 0;

		if (strcmp(line, "info\n") == 0) {
			if (info(&left, &total))
				return 1;
			printf("%zu of %zu\n", left, total);
		} else if (strcmp(line, "total\n") == 0) {
			if (total_of(&total, 0))
				return 1;
			printf("%zu\n", total);
		} else {
			int result = alloc(&pointer, strtoull(line, NULL, 10));

			if (result && result != OUT_OF_MEMORY)
				return 1;
			puts(result ? "refused" : "ok");
		}
	}
	return 0;
}
