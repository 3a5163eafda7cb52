/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On the oldest driver that is supported, which has no cuGetProcAddress: what it lacks is lacking
 * in a slice, too, and each kind of memory that it has is charged, refused beyond the quota, and
 * given back. Run in a slice of 4 GiB whose other processes are quiet. Everything is found by
 * dlsym, as a program that runs on drivers of any age does. Prints a line per step that went wrong,
 * and exits 0 if none did.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

typedef CUmemGenericAllocationHandle handle;

#define FUNCTIONS(X)                                                                               \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                                   \
	X(cuCtxDestroy_v2, (CUcontext))                                                            \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                               \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                  \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))             \
	X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))                                \
	X(cuMemFree_v2, (CUdeviceptr))                                                             \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                      \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                 \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                               \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                        \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                \
	X(cuMemCreate, (handle *, size_t, const CUmemAllocationProp *, unsigned long long))        \
	X(cuMemRelease, (handle))                                                                  \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, handle, unsigned long long))                     \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	X(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                            \
	X(cuArrayDestroy, (CUarray))                                                               \
	X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                      \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                    \
	X(cuIpcCloseMemHandle, (CUdeviceptr))                                                      \
	X(cuGraphCreate, (CUgraph *, unsigned int))                                                \
	X(cuGraphInstantiate_v2, (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t))          \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                  \
	X(cuGraphExecDestroy, (CUgraphExec))                                                       \
	X(cuGraphDestroy, (CUgraph))

#define DECLARE(name, arguments) static CUresult(*name) arguments;
FUNCTIONS(DECLARE)

/* Of younger drivers; the interceptor has a hook for most of them. */
static const char *const later[] = {"cuGetProcAddress",
                                    "cuGetProcAddress_v2",
                                    "cuCtxCreate_v3",
                                    "cuCtxCreate_v4",
                                    "cuGraphAddMemAllocNode",
                                    "cuGraphAddMemFreeNode",
                                    "cuGraphAddNode",
                                    "cuDeviceGraphMemTrim",
                                    "cuGraphInstantiateWithFlags",
                                    "cuGraphInstantiateWithParams",
                                    "cuMulticastCreate",
                                    "cuGreenCtxCreate",
                                    "cuMemGetMemPool",
                                    "cuMemGetDefaultMemPool",
                                    "cuMemSetMemPool",
                                    "cuCheckpointProcessRestore",
                                    "cuLibraryLoadData",
                                    "cuLaunchKernelEx",
                                    "cuDeviceGetGraphMemAttribute"};

#include "charged.h"

static void find_functions(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		printf("%s\n", dlerror());
		exit(1);
	}
#define FIND(name, arguments)                                                                      \
	*(void **)&name = dlsym(library, #name);                                                   \
	if (!name) {                                                                               \
		printf("there is no " #name "\n");                                                 \
		exit(1);                                                                           \
	}
	FUNCTIONS(FIND)
	for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
		if (dlsym(library, later[i])) {
			printf("there is a %s\n", later[i]);
			wrong = 1;
		}
}

static CUcontext start(void)
{
	CUcontext context;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
		printf("no context\n");
		exit(1);
	}
	return context;
}

static void linear(void)
{
	CUdeviceptr p;
	size_t pitch;

	expect("alloc", cuMemAlloc_v2(&p, 3 * MIB), CUDA_SUCCESS);
	charged("alloc 3 MiB", 4 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("alloc beyond the quota", cuMemAlloc_v2(&p, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	expect("pitch", cuMemAllocPitch_v2(&p, &pitch, 1024, 4096, 4), CUDA_SUCCESS);
	charged("pitch", 4 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("managed", cuMemAllocManaged(&p, 64 * MIB, 1), CUDA_SUCCESS);
	charged("managed", 64 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("managed beyond the quota", cuMemAllocManaged(&p, 5 * GIB, 1),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after linear memory", 0);
}

static void pools(void)
{
	CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemoryPool pool;
	CUdeviceptr p;

	expect("async", cuMemAllocAsync(&p, MIB, NULL), CUDA_SUCCESS);
	charged("async", 32 * MIB);
	expect("free", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	charged("async, freed", 0);
	expect("async beyond the quota", cuMemAllocAsync(&p, 5 * GIB, NULL),
	       CUDA_ERROR_OUT_OF_MEMORY);
	expect("pool", cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
	expect("from pool", cuMemAllocFromPoolAsync(&p, 40 * MIB, pool, NULL), CUDA_SUCCESS);
	charged("from pool", 64 * MIB);
	expect("free", cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	expect("destroy", cuMemPoolDestroy(pool), CUDA_SUCCESS);
	charged("after pools", 0);
}

static void physical(void)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUdeviceptr range;
	handle h;

	expect("reserve", cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0), CUDA_SUCCESS);
	expect("create", cuMemCreate(&h, 64 * MIB, &properties, 0), CUDA_SUCCESS);
	expect("map", cuMemMap(range, 64 * MIB, 0, h, 0), CUDA_SUCCESS);
	expect("release", cuMemRelease(h), CUDA_SUCCESS);
	charged("mapped", 64 * MIB);
	expect("unmap", cuMemUnmap(range, 64 * MIB), CUDA_SUCCESS);
	expect("create beyond the quota", cuMemCreate(&h, 5 * GIB, &properties, 0),
	       CUDA_ERROR_OUT_OF_MEMORY);
	expect("free of addresses", cuMemAddressFree(range, 64 * MIB), CUDA_SUCCESS);
	charged("after physical memory", 0);
}

static void arrays(void)
{
	CUDA_ARRAY_DESCRIPTOR square = {
	    .Width = 1000, .Height = 1000, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
	CUarray array;

	expect("array", cuArrayCreate_v2(&array, &square), CUDA_SUCCESS);
	charged("array", 4 * MIB);
	expect("destroy", cuArrayDestroy(array), CUDA_SUCCESS);
	square.Width = square.Height = 40000;
	expect("array beyond the quota", cuArrayCreate_v2(&array, &square),
	       CUDA_ERROR_OUT_OF_MEMORY);
	charged("after arrays", 0);
}

static void graphs(void)
{
	CUgraph graph;
	CUgraphExec exec;

	expect("graph", cuGraphCreate(&graph, 0), CUDA_SUCCESS);
	expect("instantiate", cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0), CUDA_SUCCESS);
	expect("launch", cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
	expect("synchronise", cuCtxSynchronize(), CUDA_SUCCESS);
	expect("destroy", cuGraphExecDestroy(exec), CUDA_SUCCESS);
	expect("destroy", cuGraphDestroy(graph), CUDA_SUCCESS);
	charged("after a graph", 0);
}

static void contexts(CUcontext primary)
{
	CUcontext second;

	expect("second context", cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
	if (left() >= base) {
		printf("a second context costs nothing\n");
		wrong = 1;
	}
	expect("destroy", cuCtxDestroy_v2(second), CUDA_SUCCESS);
	expect("back", cuCtxSetCurrent(primary), CUDA_SUCCESS);
	charged("after a context", 0);
}

/* What a process of the slice opens has been paid for: only its context counts. */
static void open_in_child(int from, int to)
{
	CUipcMemHandle memory;
	CUdeviceptr p;

	if (read(from, &memory, sizeof(memory)) != sizeof(memory))
		_exit(1);
	start();
	base = left();
	expect("open", cuIpcOpenMemHandle_v2(&p, memory, 1), CUDA_SUCCESS);
	charged("opened", 0);
	expect("close", cuIpcCloseMemHandle(p), CUDA_SUCCESS);
	charged("closed", 0);
	fflush(stdout);
	_exit(write(to, "x", 1) != 1 || wrong);
}

static void share(int to, pid_t child)
{
	CUipcMemHandle memory;
	CUdeviceptr p;
	int status;

	expect("alloc", cuMemAlloc_v2(&p, 64 * MIB), CUDA_SUCCESS);
	expect("export", cuIpcGetMemHandle(&memory, p), CUDA_SUCCESS);
	if (write(to, &memory, sizeof(memory)) != sizeof(memory) ||
	    waitpid(child, &status, 0) != child || status) {
		printf("the process that opens memory failed\n");
		wrong = 1;
	}
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	/* The enforcer settles the child's context at once, but not within our waitpid(). */
	for (int tries = 0; tries < 1000 && left() != base; tries++)
		usleep(10000);
	charged("after sharing", 0);
}

int main(void)
{
	int to_child[2], to_parent[2], version = 0;
	CUcontext context;
	size_t total = 0;
	pid_t child;

	find_functions();
	if (pipe(to_child) || pipe(to_parent))
		return 1;
	/* It must not inherit a driver that has been initialised. */
	child = fork();
	if (child == 0)
		open_in_child(to_child[0], to_parent[1]);
	context = start();
	expect("version", cuDriverGetVersion(&version), CUDA_SUCCESS);
	expect("total", cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
	if (version != 11020 || total != 4 * GIB) {
		printf("driver %d shows %zu bytes\n", version, total);
		wrong = 1;
	}
	base = left();
	linear();
	pools();
	physical();
	arrays();
	graphs();
	contexts(context);
	share(to_child[1], child);
	if (!wrong)
		printf("every kind is charged, refused and given back\n");
	return wrong;
}
