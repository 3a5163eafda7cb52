/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oldest supported driver has no cuGetProcAddress, and a slice on it has none either. Memory
 * from the functions that dlsym finds is charged, refused beyond the quota, and released.
 * accounting.c has all kinds of memory. Run it alone in a slice of 4 GiB. Prints a line per failed
 * step, and exits 0 if there is none.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define FUNCTIONS(X)                                                                               \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                               \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                  \
	X(cuMemFree_v2, (CUdeviceptr))                                                             \
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

/* Of newer drivers; the interceptor has a hook for most of them. */
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

static void linear(void)
{
	CUdeviceptr p;

	expect("alloc", cuMemAlloc_v2(&p, 3 * MIB), CUDA_SUCCESS);
	charged("alloc 3 MiB", 4 * MIB);
	expect("free", cuMemFree_v2(p), CUDA_SUCCESS);
	expect("alloc beyond the quota", cuMemAlloc_v2(&p, 5 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
	charged("after linear memory", 0);
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

/* A child opens memory that its exporter was charged for: only the child's context is charged. */
static void open_in_child(int from, int to)
{
	CUipcMemHandle memory;
	CUdeviceptr p;

	if (read(from, &memory, sizeof(memory)) != sizeof(memory))
		_exit(1);
	use_primary();
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
	left_becomes(base);
	charged("after sharing", 0);
}

int main(void)
{
	int to_child[2], to_parent[2], version = 0;
	size_t total = 0;
	pid_t child;

	find_functions();
	if (pipe(to_child) || pipe(to_parent))
		return 1;
	/* The child must not inherit an initialized driver. */
	child = fork();
	if (child == 0)
		open_in_child(to_child[0], to_parent[1]);
	use_primary();
	expect("version", cuDriverGetVersion(&version), CUDA_SUCCESS);
	expect("total", cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
	if (version != 11020 || total != 4 * GIB) {
		printf("driver %d shows %zu bytes\n", version, total);
		wrong = 1;
	}
	base = left();
	linear();
	graphs();
	share(to_child[1], child);
	if (!wrong)
		printf("what dlsym finds is charged, refused and given back\n");
	return wrong;
}
