/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way to get at a driver function leads to the interceptor's, and no other name is touched.
 * Linked with libcuda; run in a slice. Prints what is wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static const char *home(void *function)
{
	Dl_info info;

	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return "nowhere";
	return strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
}

static void expect(const char *how, void *function, const char *where)
{
	if (strncmp(home(function), where, strlen(where)) != 0) {
		printf("%s leads to %s, not to %s\n", how, home(function), where);
		wrong = 1;
	}
}

int main(void)
{
	static const char ours[] = "libgpuslice.so", driver[] = "libcuda.so";
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *(*volatile program_dlsym)(void *, const char *) = dlsym;
	CUresult (*get)(const char *, void **, int, uint64_t);
	CUresult (*get2)(const char *, void **, int, uint64_t, int *);
	void *function = NULL, *again = NULL;
	int status;

	if (!cuda) {
		printf("%s\n", dlerror());
		return 1;
	}
	expect("a linked symbol", (void *)cuMemAlloc_v2, ours);
	expect("dlsym on a handle", program_dlsym(cuda, "cuMemAlloc_v2"), ours);
	expect("dlsym on the default scope", program_dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), ours);
	expect("dlsym for the next object", program_dlsym(RTLD_NEXT, "cuMemAlloc_v2"), ours);
	expect("dlsym of a function that is not hooked", program_dlsym(cuda, "cuInit"), driver);
	expect("dlsym of the C library", program_dlsym(RTLD_DEFAULT, "strlen"), "libc.so");
	expect("the next malloc", program_dlsym(RTLD_NEXT, "malloc"), "libc.so");
	expect("dlvsym of the C library",
	       dlvsym(RTLD_DEFAULT, "nanosleep", "GLIBC_2.2.5") ?: (void *)strlen, "libc.so");
	if (program_dlsym(cuda, "cuNoSuchFunction") || !dlerror()) {
		printf("a name that does not exist was found, or dlerror() forgot it\n");
		wrong = 1;
	}
	if (dlvsym(cuda, "cuMemAlloc_v2", "NO_SUCH_VERSION")) {
		printf("a version that does not exist was found\n");
		wrong = 1;
	}

	*(void **)&get = program_dlsym(cuda, "cuGetProcAddress");
	*(void **)&get2 = program_dlsym(cuda, "cuGetProcAddress_v2");
	expect("cuGetProcAddress itself", *(void **)&get, ours);
	expect("cuGetProcAddress_v2 itself", *(void **)&get2, ours);
	cuInit(0);
	if (get("cuMemAlloc", &function, 12000, 0) || get("cuMemAlloc", &again, 3010, 0)) {
		printf("cuGetProcAddress failed\n");
		wrong = 1;
	}
	expect("cuGetProcAddress, version 12.0", function, ours);
	expect("cuGetProcAddress, version 3.1", again, ours);
	if (function == again || function != program_dlsym(cuda, "cuMemAlloc_v2") ||
	    again != program_dlsym(cuda, "cuMemAlloc")) {
		printf("cuGetProcAddress mixes up the versions of cuMemAlloc\n");
		wrong = 1;
	}
	get2("cuMemAllocAsync", &function, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status);
	get2("cuMemAllocAsync", &again, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
	     &status);
	expect("cuGetProcAddress_v2, legacy stream", function, ours);
	expect("cuGetProcAddress_v2, per-thread stream", again, ours);
	if (function == again) {
		printf("cuGetProcAddress_v2 mixes up the default streams\n");
		wrong = 1;
	}
	get2("cuGetProcAddress", &function, 12000, 0, &status);
	expect("cuGetProcAddress_v2 of itself", function, ours);
	get2("cuCtxGetCurrent", &function, 12000, 0, &status);
	expect("cuGetProcAddress_v2 of a function that is not hooked", function, driver);
	get2("cuMemAlloc", &function, 12000, 0, NULL);
	expect("cuGetProcAddress_v2 without a status", function, ours);
	if (!wrong)
		printf("all routes lead where they should\n");
	return wrong;
}
