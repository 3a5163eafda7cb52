/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_hog BYTES: allocate BYTES of VRAM on device 0, report it, and keep them until killed. It
 * uses only the driver, as a program without the CUDA toolkit can, and does not know gpuslice.
 *
 * It prints one line: "holds BYTES of TOTAL", or the failed driver call and its result. After a
 * failure it exits with 2 for CUDA_ERROR_OUT_OF_MEMORY and 1 for any other. With BYTES 0 it exits
 * after the line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_abi.h"

static struct {
	CUresult (*init)(unsigned int);
	CUresult (*device_get)(CUdevice *, int);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*set_current)(CUcontext);
	CUresult (*mem_alloc)(CUdeviceptr *, size_t);
	CUresult (*memset_d8)(CUdeviceptr, unsigned char, size_t);
	CUresult (*mem_get_info)(size_t *, size_t *);
} cu;

static void load(void)
{
	const struct {
		const char *name;
		void *where;
	} names[] = {
	    {"cuInit", &cu.init},
	    {"cuDeviceGet", &cu.device_get},
	    {"cuDevicePrimaryCtxRetain", &cu.retain},
	    {"cuCtxSetCurrent", &cu.set_current},
	    {"cuMemAlloc_v2", &cu.mem_alloc},
	    {"cuMemsetD8_v2", &cu.memset_d8},
	    {"cuMemGetInfo_v2", &cu.mem_get_info},
	};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (driver == NULL) {
		printf("dlopen: %s\n", dlerror());
		exit(1);
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *function = dlsym(driver, names[i].name);

		if (function == NULL) {
			printf("dlsym: %s\n", dlerror());
			exit(1);
		}
		memcpy(names[i].where, &function, sizeof(function));
	}
}

static void must(const char *call, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		printf("%s: CUDA_ERROR_OUT_OF_MEMORY\n", call);
	else
		printf("%s: error %d\n", call, result);
	exit(result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1);
}

int main(int argc, char **argv)
{
	char *end = NULL;
	uint64_t bytes = argc == 2 ? strtoull(argv[1], &end, 10) : 0;
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
	size_t free_bytes, total;

	if (end == NULL || end == argv[1] || *end != '\0') {
		fprintf(stderr, "usage: cuda_hog BYTES\n");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	load();
	must("cuInit", cu.init(0));
	must("cuDeviceGet", cu.device_get(&device, 0));
	must("cuDevicePrimaryCtxRetain", cu.retain(&context, device));
	must("cuCtxSetCurrent", cu.set_current(context));
	if (bytes > 0) {
		must("cuMemAlloc", cu.mem_alloc(&memory, bytes));
		/* The end is writable, so all of it exists. */
		must("cuMemsetD8", cu.memset_d8(memory + bytes - 1, 1, 1));
	}
	must("cuMemGetInfo", cu.mem_get_info(&free_bytes, &total));
	printf("holds %" PRIu64 " of %zu\n", bytes, total);
	if (bytes == 0)
		return 0;
	for (;;)
		pause();
}
