/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the conformance programs. Each calls the driver and prints `key: value` lines that do
 * not depend on addresses or time, so two drivers can be compared line by line. They need a card
 * without other users, and at most 4 GiB of it; graph and checkpoint fill it.
 *
 * Everything is here and static, so gcc, one file and libdl make a program.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "../../interceptor/cuda_abi.h"
#include "../../interceptor/nvml_abi.h"
#include "../fakecuda/abi.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KiB ((size_t)1024)
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef CUmemGenericAllocationHandle CUhandle;

/* The driver's functions, under their own names, as pointers that start() fills: those of the
 * interceptor's table, and these. */
#define MORE_ENTRY_POINTS(X)                                                                       \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                \
	X(cuGetErrorName, (CUresult, const char **))                                               \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                         \
	X(cuMemFreeHost, (void *))                                                                 \
	X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                     \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                    \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                          \
	X(cuStreamDestroy_v2, (CUstream))                                                          \
	X(cuEventCreate, (CUevent *, unsigned int))                                                \
	X(cuEventRecord, (CUevent, CUstream))                                                      \
	X(cuEventDestroy_v2, (CUevent))                                                            \
	X(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long))       \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                         \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))         \
	X(cuArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES *, CUarray))                   \
	X(cuPointerGetAttributes, (unsigned int, int *, void **, CUdeviceptr))                     \
	X(cuPointerSetAttribute, (const void *, int, CUdeviceptr))                                 \
	X(cuExternalMemoryGetMappedBuffer,                                                         \
	  (CUdeviceptr *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *))             \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                         \
	X(cuGraphCreate, (CUgraph *, unsigned int))                                                \
	X(cuGraphDestroy, (CUgraph))                                                               \
	X(cuGraphClone, (CUgraph *, CUgraph))                                                      \
	X(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))              \
	X(cuGraphAddChildGraphNode,                                                                \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                          \
	X(cuGraphAddMemAllocNode,                                                                  \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))     \
	X(cuGraphAddMemFreeNode,                                                                   \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                      \
	X(cuGraphAddNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,   \
	                      CUgraphNodeParams *))                                                \
	X(cuGraphMemFreeNodeGetParams, (CUgraphNode, CUdeviceptr *))                               \
	X(cuDeviceSetGraphMemAttribute, (CUdevice, int, void *))                                   \
	X(cuDeviceGetDevResource, (CUdevice, CUdevResource *, int))                                \
	X(cuDevSmResourceSplitByCount, (CUdevResource *, unsigned int *, const CUdevResource *,    \
	                                CUdevResource *, unsigned int, unsigned int))              \
	X(cuDevResourceGenerateDesc, (CUdevResourceDesc *, CUdevResource *, unsigned int))         \
	X(cuCheckpointProcessCheckpoint, (int, void *))                                            \
	X(cuCheckpointProcessGetState, (int, int *))                                               \
	X(cuCheckpointProcessGetRestoreThreadId, (int, int *))                                     \
	X(cuCheckpointProcessLock, (int, CUcheckpointLockArgs *))                                  \
	X(cuCheckpointProcessRestore, (int, void *))                                               \
	X(cuCheckpointProcessUnlock, (int, void *))                                                \
	X(cuFuncLoad, (CUfunction))                                                                \
	X(cuFuncSetAttribute, (CUfunction, int, int))                                              \
	X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                            \
	X(cuLinkCreate_v2, (unsigned int, int *, void **, CUlinkState *))                          \
	X(cuLinkAddData_v2,                                                                        \
	  (CUlinkState, int, void *, size_t, const char *, unsigned int, int *, void **))          \
	X(cuLinkComplete, (CUlinkState, void **, size_t *))                                        \
	X(cuLinkDestroy, (CUlinkState))                                                            \
	X(cuGraphAddKernelNode_v2,                                                                 \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))

#define MORE_NVML_ENTRY_POINTS(X)                                                                  \
	X(nvmlInit_v2, (void))                                                                     \
	X(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))

#define UNUSED __attribute__((unused))

#define DECLARE(name, arguments) static CUresult(*name) arguments UNUSED;
#define HOOK(name, arguments, charged, released) DECLARE(name, arguments)
#define CALL(name, arguments) DECLARE(name, arguments)
#include "../../interceptor/driver.def"
MORE_ENTRY_POINTS(DECLARE)
#undef DECLARE
#define DECLARE(name, arguments) static nvmlReturn_t(*name) arguments UNUSED;
#define HOOK(name, arguments, shown, released) DECLARE(name, arguments)
#define CALL(name, arguments) DECLARE(name, arguments)
#include "../../interceptor/nvml.def"
MORE_NVML_ENTRY_POINTS(DECLARE)
#undef DECLARE

static void *libcuda UNUSED;
static nvmlDevice_t nvml_device UNUSED;

__attribute__((noreturn, format(printf, 1, 2))) static void stop(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

/* Stores a symbol's address as a function pointer: ISO C has no cast for it. */
static void load(void *library, const char *name, void *pointer)
{
	void *symbol = dlsym(library, name);

	memcpy(pointer, &symbol, sizeof(symbol));
}

static void load_driver(void *library)
{
#define LOAD(name, arguments) load(library, #name, &name);
#define HOOK(name, arguments, charged, released) LOAD(name, arguments)
#define CALL(name, arguments) LOAD(name, arguments)
#include "../../interceptor/driver.def"
	MORE_ENTRY_POINTS(LOAD)
#undef LOAD
}

static void load_nvml(void *library)
{
#define LOAD(name, arguments) load(library, #name, &name);
#define HOOK(name, arguments, shown, released) LOAD(name, arguments)
#define CALL(name, arguments) LOAD(name, arguments)
#include "../../interceptor/nvml.def"
	MORE_NVML_ENTRY_POINTS(LOAD)
#undef LOAD
}

/* A key, until the next one is made. */
__attribute__((format(printf, 1, 2))) static UNUSED const char *keyed(const char *format, ...)
{
	static char key[96];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(key, sizeof(key), format, arguments);
	va_end(arguments);
	return key;
}

static UNUSED const char *name_of(CUresult result)
{
	const char *name = "(no name)";

	cuGetErrorName(result, &name);
	return name;
}

static UNUSED void must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS)
		stop("%s: %s", what, name_of(result));
}
#define MUST(call) must(call, #call)

static UNUSED void say_result(const char *key, CUresult result)
{
	printf("%s: %s\n", key, name_of(result));
}

static void start_nvml(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	char text[41] = "GPU-";
	char *at = text + 4;
	CUuuid uuid;

	if (!library)
		stop("%s", dlerror());
	load_nvml(library);
	if (nvmlInit_v2() != NVML_SUCCESS)
		stop("nvmlInit_v2 failed");
	MUST(cuDeviceGetUuid_v2(&uuid, 0));
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", uuid.bytes[i]);
	}
	if (nvmlDeviceGetHandleByUUID(text, &nvml_device) != NVML_SUCCESS)
		stop("NVML does not know %s", text);
}

/* Loads and initializes both libraries, without a context. */
static UNUSED void start(void)
{
	/* Keeps printed lines if a later call crashes. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda)
		stop("%s", dlerror());
	load_driver(libcuda);
	MUST(cuInit(0));
	start_nvml();
}

static UNUSED CUcontext start_with_context(void)
{
	CUcontext context;

	start();
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	return context;
}

/* The bytes in use on the card, of all processes. */
static UNUSED long long held(void)
{
	nvmlMemory_t memory;

	if (nvmlDeviceGetMemoryInfo(nvml_device, &memory) != NVML_SUCCESS)
		stop("nvmlDeviceGetMemoryInfo failed");
	return (long long)memory.used;
}

/* NVML's bytes for a process; -1: not listed. */
static UNUSED long long listed(int pid)
{
	static nvmlProcessInfo_v2_t list[1024];
	unsigned int count = COUNT(list);

	if (nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, &count, list) != NVML_SUCCESS)
		stop("nvmlDeviceGetComputeRunningProcesses_v3 failed");
	for (unsigned int i = 0; i < count; i++)
		if (list[i].pid == (unsigned int)pid)
			return (long long)list[i].usedGpuMemory;
	return -1;
}

static UNUSED const char *size_text(char text[32], size_t bytes)
{
	if (bytes >= MiB && bytes % MiB == 0)
		sprintf(text, "%zuMiB", bytes / MiB);
	else if (bytes >= KiB && bytes % KiB == 0)
		sprintf(text, "%zuKiB", bytes / KiB);
	else
		sprintf(text, "%zu", bytes);
	return text;
}

#endif
