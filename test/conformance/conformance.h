/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the conformance programs share. Each of them asks the driver a few questions and prints
 * `key: value` lines that do not depend on addresses or time, so that two drivers can be compared
 * line by line. They need a card that nobody else uses, and at most 4 GiB of it; graph and
 * checkpoint fill it.
 *
 * Everything is here and static, so that gcc, one file and libdl make a program.
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

/* The driver's entry points, under their own names, as pointers that start() fills. */
#define ENTRY_POINTS(X)                                                                            \
	X(cuInit, (unsigned int))                                                                  \
	X(cuDriverGetVersion, (int *))                                                             \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                            \
	X(cuDeviceGetUuid_v2, (CUuuid *, CUdevice))                                                \
	X(cuDeviceTotalMem, (unsigned int *, CUdevice))                                            \
	X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                               \
	X(cuGetErrorName, (CUresult, const char **))                                               \
	X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                \
	X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                      \
	X(cuCtxCreate, (CUcontext *, unsigned int, CUdevice))                                      \
	X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                                   \
	X(cuCtxCreate_v3, (CUcontext *, void *, int, unsigned int, CUdevice))                      \
	X(cuCtxCreate_v4, (CUcontext *, void *, unsigned int, CUdevice))                           \
	X(cuCtxDestroy_v2, (CUcontext))                                                            \
	X(cuCtxGetCurrent, (CUcontext *))                                                          \
	X(cuCtxSetCurrent, (CUcontext))                                                            \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                  \
	X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned int *, int *))                           \
	X(cuMemAlloc, (CUdeviceptr_v1 *, unsigned int))                                            \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                  \
	X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))             \
	X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))                                \
	X(cuMemFree, (CUdeviceptr_v1))                                                             \
	X(cuMemFree_v2, (CUdeviceptr))                                                             \
	X(cuMemGetInfo, (unsigned int *, unsigned int *))                                          \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                         \
	X(cuMemHostAlloc, (void **, size_t, unsigned int))                                         \
	X(cuMemFreeHost, (void *))                                                                 \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                    \
	X(cuMemHostUnregister, (void *))                                                           \
	X(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))                                     \
	X(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                    \
	X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                          \
	X(cuStreamCreate, (CUstream *, unsigned int))                                              \
	X(cuStreamDestroy_v2, (CUstream))                                                          \
	X(cuStreamSynchronize, (CUstream))                                                         \
	X(cuEventCreate, (CUevent *, unsigned int))                                                \
	X(cuEventRecord, (CUevent, CUstream))                                                      \
	X(cuEventSynchronize, (CUevent))                                                           \
	X(cuEventDestroy_v2, (CUevent))                                                            \
	X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))                                   \
	X(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))                                          \
	X(cuDeviceSetMemPool, (CUdevice, CUmemoryPool))                                            \
	X(cuMemGetDefaultMemPool, (CUmemoryPool *, CUmemLocation *, int))                          \
	X(cuMemGetMemPool, (CUmemoryPool *, CUmemLocation *, int))                                 \
	X(cuMemSetMemPool, (CUmemLocation *, int, CUmemoryPool))                                   \
	X(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                               \
	X(cuMemPoolDestroy, (CUmemoryPool))                                                        \
	X(cuMemPoolTrimTo, (CUmemoryPool, size_t))                                                 \
	X(cuMemPoolGetAttribute, (CUmemoryPool, int, void *))                                      \
	X(cuMemPoolSetAttribute, (CUmemoryPool, int, void *))                                      \
	X(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                      \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                \
	X(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                 \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	X(cuMemCreate, (CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long))      \
	X(cuMemRelease, (CUhandle))                                                                \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))                   \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                  \
	X(cuMemGetAccess, (unsigned long long *, const CUmemLocation *, CUdeviceptr))              \
	X(cuMemRetainAllocationHandle, (CUhandle *, void *))                                       \
	X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int))             \
	X(cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                        \
	X(cuMemPoolExportToShareableHandle, (void *, CUmemoryPool, int, unsigned long long))       \
	X(cuMemPoolImportFromShareableHandle, (CUmemoryPool *, void *, int, unsigned long long))   \
	X(cuMemPoolExportPointer, (CUmemPoolPtrExportData *, CUdeviceptr))                         \
	X(cuMemPoolImportPointer, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *))         \
	X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *, CUhandle))               \
	X(cuMemExportToShareableHandle, (void *, CUhandle, int, unsigned long long))               \
	X(cuMemImportFromShareableHandle, (CUhandle *, void *, int))                               \
	X(cuMemMapArrayAsync, (CUarrayMapInfo *, unsigned int, CUstream))                          \
	X(cuArrayGetSparseProperties, (CUDA_ARRAY_SPARSE_PROPERTIES *, CUarray))                   \
	X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                      \
	X(cuIpcOpenMemHandle, (CUdeviceptr *, CUipcMemHandle, unsigned int))                       \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                    \
	X(cuIpcCloseMemHandle, (CUdeviceptr))                                                      \
	X(cuImportExternalMemory, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))  \
	X(cuDestroyExternalMemory, (CUexternalMemory))                                             \
	X(cuExternalMemoryGetMappedBuffer,                                                         \
	  (CUdeviceptr *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *))             \
	X(cuArrayDestroy, (CUarray))                                                               \
	X(cuMipmappedArrayCreate,                                                                  \
	  (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int))                     \
	X(cuMipmappedArrayDestroy, (CUmipmappedArray))                                             \
	GRAPH_ENTRY_POINTS(X)                                                                      \
	LATER_ENTRY_POINTS(X)

#define GRAPH_ENTRY_POINTS(X)                                                                      \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                         \
	X(cuStreamBeginCapture_v2, (CUstream, int))                                                \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                               \
	X(cuStreamIsCapturing, (CUstream, int *))                                                  \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                                    \
	X(cuGraphCreate, (CUgraph *, unsigned int))                                                \
	X(cuGraphDestroy, (CUgraph))                                                               \
	X(cuGraphClone, (CUgraph *, CUgraph))                                                      \
	X(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *))                                     \
	X(cuGraphNodeGetType, (CUgraphNode, int *))                                                \
	X(cuGraphAddEmptyNode, (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))              \
	X(cuGraphAddChildGraphNode,                                                                \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph))                          \
	X(cuGraphAddMemAllocNode,                                                                  \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *))     \
	X(cuGraphAddMemFreeNode,                                                                   \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                      \
	X(cuGraphAddNode_v2, (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t,   \
	                      CUgraphNodeParams *))                                                \
	X(cuGraphMemAllocNodeGetParams, (CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *))               \
	X(cuGraphMemFreeNodeGetParams, (CUgraphNode, CUdeviceptr *))                               \
	X(cuGraphInstantiate_v2, (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t))          \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))               \
	X(cuGraphInstantiateWithParams, (CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *)) \
	X(cuGraphUpload, (CUgraphExec, CUstream))                                                  \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                  \
	X(cuGraphExecDestroy, (CUgraphExec))                                                       \
	X(cuGraphExecUpdate_v2, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *))             \
	X(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *))                                   \
	X(cuDeviceSetGraphMemAttribute, (CUdevice, int, void *))                                   \
	X(cuDeviceGraphMemTrim, (CUdevice))

/* What younger drivers have beside memory: limits, kernels, green contexts, checkpoints. */
#define LATER_ENTRY_POINTS(X)                                                                      \
	X(cuCtxGetLimit, (size_t *, int))                                                          \
	X(cuCtxSetLimit, (int, size_t))                                                            \
	CODE_ENTRY_POINTS(X)                                                                       \
	X(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,     \
	                   unsigned int, unsigned int, unsigned int, CUstream, void **, void **))  \
	X(cuDeviceGetDevResource, (CUdevice, CUdevResource *, int))                                \
	X(cuDevSmResourceSplitByCount, (CUdevResource *, unsigned int *, const CUdevResource *,    \
	                                CUdevResource *, unsigned int, unsigned int))              \
	X(cuDevResourceGenerateDesc, (CUdevResourceDesc *, CUdevResource *, unsigned int))         \
	X(cuGreenCtxCreate, (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int))             \
	X(cuGreenCtxDestroy, (CUgreenCtx))                                                         \
	X(cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx))                                            \
	X(cuGreenCtxStreamCreate, (CUstream *, CUgreenCtx, unsigned int, int))                     \
	X(cuCheckpointProcessGetState, (int, int *))                                               \
	X(cuCheckpointProcessGetRestoreThreadId, (int, int *))                                     \
	X(cuCheckpointProcessLock, (int, CUcheckpointLockArgs *))                                  \
	X(cuCheckpointProcessCheckpoint, (int, void *))                                            \
	X(cuCheckpointProcessRestore, (int, void *))                                               \
	X(cuCheckpointProcessUnlock, (int, void *))

#define CODE_ENTRY_POINTS(X)                                                                       \
	X(cuModuleLoadData, (CUmodule *, const void *))                                            \
	X(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, int *, void **))            \
	X(cuModuleUnload, (CUmodule))                                                              \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                             \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                 \
	X(cuFuncGetAttribute, (int *, int, CUfunction))                                            \
	X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                            \
	X(cuLinkCreate_v2, (unsigned int, int *, void **, CUlinkState *))                          \
	X(cuLinkAddData_v2,                                                                        \
	  (CUlinkState, int, void *, size_t, const char *, unsigned int, int *, void **))          \
	X(cuLinkComplete, (CUlinkState, void **, size_t *))                                        \
	X(cuLinkDestroy, (CUlinkState))                                                            \
	X(cuLibraryLoadData,                                                                       \
	  (CUlibrary *, const void *, int *, void **, unsigned int, int *, void **, unsigned int)) \
	X(cuLibraryUnload, (CUlibrary))                                                            \
	X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                               \
	X(cuLibraryGetModule, (CUmodule *, CUlibrary))                                             \
	X(cuLibraryGetGlobal, (CUdeviceptr *, size_t *, CUlibrary, const char *))                  \
	X(cuKernelGetFunction, (CUfunction *, CUkernel))                                           \
	X(cuKernelGetAttribute, (int *, int, CUkernel, CUdevice))                                  \
	X(cuGraphAddKernelNode_v2,                                                                 \
	  (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *))  \
	X(cuGraphKernelNodeGetParams_v2, (CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))                 \
	X(cuGraphExecKernelNodeSetParams_v2,                                                       \
	  (CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *))

#define NVML_ENTRY_POINTS(X)                                                                       \
	X(nvmlInit_v2, (void))                                                                     \
	X(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                               \
	X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                 \
	X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, nvmlMemory_v2_t *))                           \
	X(nvmlDeviceGetComputeRunningProcesses,                                                    \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *))                                  \
	X(nvmlDeviceGetComputeRunningProcesses_v2,                                                 \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetComputeRunningProcesses_v3,                                                 \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetGraphicsRunningProcesses,                                                   \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *))                                  \
	X(nvmlDeviceGetGraphicsRunningProcesses_v2,                                                \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetGraphicsRunningProcesses_v3,                                                \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetMPSComputeRunningProcesses,                                                 \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *))                                  \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v2,                                              \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetMPSComputeRunningProcesses_v3,                                              \
	  (nvmlDevice_t, unsigned int *, nvmlProcessInfo_v2_t *))                                  \
	X(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t, nvmlProcessDetailList_v1_t *))     \
	X(nvmlDeviceGetProcessUtilization,                                                         \
	  (nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned int *, unsigned long long))    \
	X(nvmlDeviceGetProcessesUtilizationInfo,                                                   \
	  (nvmlDevice_t, nvmlProcessesUtilizationInfo_v1_t *))

#define UNUSED __attribute__((unused))

#define DECLARE(name, arguments) static CUresult(*name) arguments UNUSED;
ENTRY_POINTS(DECLARE)
#undef DECLARE
#define DECLARE(name, arguments) static nvmlReturn_t(*name) arguments UNUSED;
NVML_ENTRY_POINTS(DECLARE)
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

/* The address of a symbol as a function: ISO C has no cast for it. */
static void load(void *library, const char *name, void *pointer)
{
	void *symbol = dlsym(library, name);

	memcpy(pointer, &symbol, sizeof(symbol));
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
#define LOAD(name, arguments) load(library, #name, &name);
	NVML_ENTRY_POINTS(LOAD)
#undef LOAD
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

/* Loads both libraries and initialises them; there is no context yet. */
static UNUSED void start(void)
{
	/* A line that is printed stays, whatever the next call does. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	libcuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!libcuda)
		stop("%s", dlerror());
#define LOAD(name, arguments) load(libcuda, #name, &name);
	ENTRY_POINTS(LOAD)
#undef LOAD
	MUST(cuInit(0));
	start_nvml();
}

/* The same, with device 0's primary context current. */
static UNUSED CUcontext start_with_context(void)
{
	CUcontext context;

	start();
	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	return context;
}

/* The bytes in use on the card, by everyone. */
static UNUSED long long held(void)
{
	nvmlMemory_t memory;

	if (nvmlDeviceGetMemoryInfo(nvml_device, &memory) != NVML_SUCCESS)
		stop("nvmlDeviceGetMemoryInfo failed");
	return (long long)memory.used;
}

/* What NVML lists for a process; -1: it is not in the list. */
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
