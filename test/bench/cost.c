/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the interceptor adds to calls of the CUDA driver. Run in a slice, it makes each call both
 * ways in one process, in alternating batches: by the driver's own function, and by the one that a
 * program gets. On a machine whose speed drifts, two runs compared with one another say more about
 * the machine.
 *
 * A line per call: name, nanoseconds by the driver's own function, by the program's, and the median
 * ratio of neighbouring batches, separated by tabs. Run outside a slice both are the same function:
 * then the ratios show how far 1.00 is to be trusted.
 *
 * cost [SCALE]: batches are SCALE per cent of their usual size.
 * cost start: only the time of cuInit and the first context.
 * cost runtime [SCALE]: only the runtime library's calls, which cannot be made both ways in one
 * process.
 */
#define _GNU_SOURCE
#include "cuda_abi.h"
#include "elf_symbol.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BATCHES 15
#define KEPT 20000

/* The driver by one of the two ways. */
struct driver {
	CUresult (*cuInit)(unsigned int);
	CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
	CUresult (*cuDevicePrimaryCtxRelease)(CUdevice);
	CUresult (*cuCtxSetCurrent)(CUcontext);
	CUresult (*cuCtxSynchronize)(void);
	CUresult (*cuStreamSynchronize)(CUstream);
	CUresult (*cuMemAlloc)(CUdeviceptr *, size_t);
	CUresult (*cuMemFree)(CUdeviceptr);
	CUresult (*cuMemGetInfo)(size_t *, size_t *);
	CUresult (*cuMemAllocAsync)(CUdeviceptr *, size_t, CUstream);
	CUresult (*cuMemFreeAsync)(CUdeviceptr, CUstream);
	CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	                        unsigned long long);
	CUresult (*cuMemRelease)(CUmemGenericAllocationHandle);
	CUresult (*cuDeviceGetDefaultMemPool)(CUmemoryPool *, CUdevice);
	CUresult (*cuMemPoolSetAttribute)(CUmemoryPool, int, void *);
	CUresult (*cuModuleLoadData)(void **, const void *);
	CUresult (*cuModuleGetFunction)(void **, void *, const char *);
	CUresult (*cuLaunchKernel)(void *, unsigned int, unsigned int, unsigned int, unsigned int,
	                           unsigned int, unsigned int, unsigned int, CUstream, void **,
	                           void **);
};

static struct driver own, program; /* the driver's own functions; what a program gets */
static const struct driver *way;
static int (*cudaMallocAsync)(void **, size_t, CUstream);
static int (*cudaFreeAsync)(void *, CUstream);

static int scale = 100;
static CUdeviceptr kept[KEPT];
static void *kernel;

static void must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "cost: %s failed with CUDA error %d\n", what, result);
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double median(double *values)
{
	qsort(values, BATCHES, sizeof(*values), by_value);
	return values[BATCHES / 2];
}

/* `batch` makes n calls and returns how many nanoseconds they took. */
static void measure(const char *name, double (*batch)(int n), int n)
{
	double native[BATCHES], sliced[BATCHES], ratio[BATCHES];

	n = n * scale / 100 > 0 ? n * scale / 100 : 1;
	for (int i = -1; i < BATCHES; i++) {
		double took[2];

		/* Which goes first changes, so that neither always finds the caches warm. */
		for (int turn = 0; turn < 2; turn++) {
			int which = (turn ^ i) & 1;

			way = which ? &program : &own;
			took[which] = batch(n) / n;
		}
		if (i < 0)
			continue; /* warm */
		native[i] = took[0];
		sliced[i] = took[1];
		ratio[i] = took[1] / took[0];
	}
	printf("%s\t%.2f\t%.2f\t%.4f\n", name, median(native), median(sliced), median(ratio));
	fflush(stdout);
}

static double batch_context(int n)
{
	double start = now();
	CUcontext context;

	for (int i = 0; i < n; i++) {
		must(way->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
		must(way->cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
	}
	return now() - start;
}

static double batch_small_kept(int n)
{
	double start = now(), took;

	for (int i = 0; i < n; i++)
		must(way->cuMemAlloc(&kept[i], 1024), "cuMemAlloc");
	took = now() - start;
	for (int i = 0; i < n; i++)
		must(way->cuMemFree(kept[i]), "cuMemFree");
	return took;
}

static double batch_small_free(int n)
{
	double start;

	for (int i = 0; i < n; i++)
		must(way->cuMemAlloc(&kept[i], 1024), "cuMemAlloc");
	start = now();
	for (int i = 0; i < n; i++)
		must(way->cuMemFree(kept[i]), "cuMemFree");
	return now() - start;
}

static double pairs(int n, size_t bytes)
{
	double start = now();
	CUdeviceptr p;

	for (int i = 0; i < n; i++) {
		must(way->cuMemAlloc(&p, bytes), "cuMemAlloc");
		must(way->cuMemFree(p), "cuMemFree");
	}
	return now() - start;
}

static double batch_1m(int n)
{
	return pairs(n, 1u << 20);
}

static double batch_1g(int n)
{
	return pairs(n, 1u << 30);
}

static double batch_create(int n)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	double start = now();

	for (int i = 0; i < n; i++) {
		must(way->cuMemCreate(&handle, 2u << 20, &properties, 0), "cuMemCreate");
		must(way->cuMemRelease(handle), "cuMemRelease");
	}
	return now() - start;
}

static double batch_async(int n)
{
	double start = now();
	CUdeviceptr p;

	for (int i = 0; i < n; i++) {
		must(way->cuMemAllocAsync(&p, 1u << 20, NULL), "cuMemAllocAsync");
		must(way->cuMemFreeAsync(p, NULL), "cuMemFreeAsync");
	}
	start = now() - start;
	must(way->cuCtxSynchronize(), "cuCtxSynchronize");
	return start;
}

static double batch_runtime_async(int n)
{
	double start = now();
	void *p;

	for (int i = 0; i < n; i++) {
		must(cudaMallocAsync(&p, 1u << 20, NULL), "cudaMallocAsync");
		must(cudaFreeAsync(p, NULL), "cudaFreeAsync");
	}
	start = now() - start;
	must(way->cuCtxSynchronize(), "cuCtxSynchronize");
	return start;
}

static double batch_info(int n)
{
	double start = now();
	size_t available, total;

	for (int i = 0; i < n; i++)
		must(way->cuMemGetInfo(&available, &total), "cuMemGetInfo");
	return now() - start;
}

static double batch_launch(int n)
{
	double start = now();

	for (int i = 0; i < n; i++)
		must(way->cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
		     "cuLaunchKernel");
	must(way->cuCtxSynchronize(), "cuCtxSynchronize");
	return now() - start;
}

static double batch_synchronize(int n)
{
	double start = now();

	for (int i = 0; i < n; i++)
		must(way->cuStreamSynchronize(NULL), "cuStreamSynchronize");
	return now() - start;
}

static void find_program(void *library, const char *name, void *where)
{
	*(void **)where = dlsym(library, name);
	if (!*(void **)where) {
		fprintf(stderr, "cost: the library has no %s\n", name);
		exit(1);
	}
}

static void find_both(void *library, const struct elf_object *object, const char *name,
                      size_t offset)
{
	find_program(library, name, (char *)&program + offset);
	*(void **)((char *)&own + offset) = elf_find_symbol(object, name);
}

static void find_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	struct elf_object object;

	if (!library || !elf_find_object("libcuda.so.1", &object)) {
		fprintf(stderr, "cost: %s\n", dlerror());
		exit(1);
	}
#define FIND(member, name) find_both(library, &object, name, offsetof(struct driver, member))
	FIND(cuInit, "cuInit");
	FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
	FIND(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
	FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
	FIND(cuCtxSynchronize, "cuCtxSynchronize");
	FIND(cuStreamSynchronize, "cuStreamSynchronize");
	FIND(cuMemAlloc, "cuMemAlloc_v2");
	FIND(cuMemFree, "cuMemFree_v2");
	FIND(cuMemGetInfo, "cuMemGetInfo_v2");
	FIND(cuMemAllocAsync, "cuMemAllocAsync");
	FIND(cuMemFreeAsync, "cuMemFreeAsync");
	FIND(cuMemCreate, "cuMemCreate");
	FIND(cuMemRelease, "cuMemRelease");
	FIND(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool");
	FIND(cuMemPoolSetAttribute, "cuMemPoolSetAttribute");
	FIND(cuModuleLoadData, "cuModuleLoadData");
	FIND(cuModuleGetFunction, "cuModuleGetFunction");
	FIND(cuLaunchKernel, "cuLaunchKernel");
#undef FIND
}

/* The runtime library finds its driver functions by itself, so in one process it knows one way. */
static void measure_runtime(void)
{
	static const char *const names[] = {"libcudart.so.13", "/usr/local/cuda/lib64/libcudart.so",
	                                    "libcudart.so.12"};
	double took[BATCHES];
	void *runtime = NULL;
	int n = 20000 * scale / 100;

	for (size_t i = 0; !runtime && i < sizeof(names) / sizeof(*names); i++)
		runtime = dlopen(names[i], RTLD_NOW);
	if (!runtime)
		return;
	find_program(runtime, "cudaMallocAsync", &cudaMallocAsync);
	find_program(runtime, "cudaFreeAsync", &cudaFreeAsync);
	(void)batch_runtime_async(n);
	for (int i = 0; i < BATCHES; i++)
		took[i] = batch_runtime_async(n) / n;
	printf("cudaMallocAsync + cudaFreeAsync 1 MiB, warm\t%.2f\n", median(took));
}

static void start(void)
{
	static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
	                          ".visible .entry nothing()\n{\n ret;\n}\n";
	unsigned long long keep_all = UINT64_MAX;
	CUmemoryPool pool;
	CUcontext context;
	void *module;

	must(way->cuInit(0), "cuInit");
	must(way->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(way->cuCtxSetCurrent(context), "cuCtxSetCurrent");
	must(way->cuDeviceGetDefaultMemPool(&pool, 0), "cuDeviceGetDefaultMemPool");
	must(way->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all),
	     "cuMemPoolSetAttribute");
	must(way->cuModuleLoadData(&module, ptx), "cuModuleLoadData");
	must(way->cuModuleGetFunction(&kernel, module, "nothing"), "cuModuleGetFunction");
}

int main(int argc, char **argv)
{
	bool only_start = argc > 1 && strcmp(argv[1], "start") == 0;
	bool only_runtime = argc > 1 && strcmp(argv[1], "runtime") == 0;
	CUcontext context;
	double begun;

	if (argc > 1 + only_runtime && !only_start)
		scale = atoi(argv[1 + only_runtime]);
	find_driver();
	way = &program;
	if (only_start) {
		begun = now();
		must(way->cuInit(0), "cuInit");
		must(way->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
		printf("cuInit + first context\t%.2f\n", now() - begun);
		return 0;
	}
	if (!only_runtime) {
		must(way->cuInit(0), "cuInit");
		measure("a context, made and destroyed", batch_context, 1);
	}
	way = &program;
	start();
	if (only_runtime) {
		measure_runtime();
		return 0;
	}
	measure("cuMemAlloc 1 KiB, kept", batch_small_kept, KEPT);
	measure("cuMemFree of those", batch_small_free, KEPT);
	measure("cuMemAlloc + cuMemFree 1 MiB", batch_1m, 100);
	measure("cuMemAlloc + cuMemFree 1 GiB", batch_1g, 10);
	measure("cuMemCreate + cuMemRelease 2 MiB", batch_create, 500);
	measure("cuMemAllocAsync + cuMemFreeAsync 1 MiB, warm", batch_async, 20000);
	measure("cuMemGetInfo", batch_info, 2000);
	measure("cuLaunchKernel, empty", batch_launch, 10000);
	measure("cuStreamSynchronize, idle", batch_synchronize, 20000);
	return 0;
}
