/* SPDX-License-Identifier: Apache-2.0 */
/* The driver twice in one process: its own functions, found in the library itself behind any
 * interposed ones, and those that a program gets. Outside a slice they are the same. */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include "cuda_abi.h"
#include "nvml_abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* FUNCTION(member, exported name, arguments). A missing NEEDED function ends the program; a
 * missing OPTIONAL one leaves out its rows. */
#define DRIVER_FUNCTIONS(NEEDED, OPTIONAL)                                                         \
	NEEDED(cuInit, "cuInit", (unsigned int))                                                   \
	NEEDED(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, CUdevice))                      \
	NEEDED(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))      \
	NEEDED(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))              \
	NEEDED(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                    \
	NEEDED(cuCtxSynchronize, "cuCtxSynchronize", (void))                                       \
	NEEDED(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                             \
	NEEDED(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                               \
	NEEDED(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                           \
	NEEDED(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                              \
	NEEDED(cuMemAllocAsync, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))              \
	NEEDED(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream))                          \
	NEEDED(cuMemCreate, "cuMemCreate",                                                         \
	       (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,               \
	        unsigned long long))                                                               \
	NEEDED(cuMemRelease, "cuMemRelease", (CUmemGenericAllocationHandle))                       \
	NEEDED(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice)) \
	NEEDED(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", (CUmemoryPool, int, void *))        \
	NEEDED(cuModuleLoadData, "cuModuleLoadData", (void **, const void *))                      \
	NEEDED(cuModuleUnload, "cuModuleUnload", (void *))                                         \
	NEEDED(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))        \
	NEEDED(cuLaunchKernel, "cuLaunchKernel",                                                   \
	       (void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,      \
	        unsigned int, unsigned int, CUstream, void **, void **))                           \
	OPTIONAL(cuCtxCreate, "cuCtxCreate_v2", (CUcontext *, unsigned int, CUdevice))             \
	OPTIONAL(                                                                                  \
	    cuLibraryLoadData, "cuLibraryLoadData",                                                \
	    (void **, const void *, void *, void *, unsigned int, void *, void *, unsigned int))   \
	OPTIONAL(cuLibraryGetKernel, "cuLibraryGetKernel", (void **, void *, const char *))        \
	OPTIONAL(cuMemAllocPitch, "cuMemAllocPitch_v2",                                            \
	         (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))                          \
	OPTIONAL(cuMemAllocManaged, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned int))    \
	OPTIONAL(cuMemAddressReserve, "cuMemAddressReserve",                                       \
	         (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                 \
	OPTIONAL(cuMemMap, "cuMemMap",                                                             \
	         (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))  \
	OPTIONAL(cuMemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                  \
	OPTIONAL(cuArrayCreate, "cuArrayCreate_v2", (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))    \
	OPTIONAL(cuArrayDestroy, "cuArrayDestroy", (CUarray))                                      \
	OPTIONAL(cuMipmappedArrayCreate, "cuMipmappedArrayCreate",                                 \
	         (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int))              \
	OPTIONAL(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", (CUmipmappedArray))           \
	OPTIONAL(cuGraphCreate, "cuGraphCreate", (CUgraph *, unsigned int))                        \
	OPTIONAL(cuGraphAddEmptyNode, "cuGraphAddEmptyNode",                                       \
	         (CUgraphNode *, CUgraph, const CUgraphNode *, size_t))                            \
	OPTIONAL(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                       \
	         (CUgraphExec *, CUgraph, unsigned long long))                                     \
	OPTIONAL(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                          \
	OPTIONAL(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))          \
	OPTIONAL(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2",                                      \
	         (CUdeviceptr *, CUipcMemHandle, unsigned int))                                    \
	OPTIONAL(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))

/* The same for NVML, all optional: the library may be missing. */
#define NVML_FUNCTIONS(OPTIONAL)                                                                   \
	OPTIONAL(nvmlInit, "nvmlInit_v2", (void))                                                  \
	OPTIONAL(nvmlDeviceGetHandleByIndex, "nvmlDeviceGetHandleByIndex_v2",                      \
	         (unsigned int, nvmlDevice_t *))                                                   \
	OPTIONAL(nvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo", (nvmlDevice_t, nvmlMemory_t *))

struct driver {
#define MEMBER(member, name, arguments) CUresult(*member) arguments;
	DRIVER_FUNCTIONS(MEMBER, MEMBER)
	NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};

extern struct driver own, program; /* the driver's own functions; those that a program gets */
extern const struct driver *way;   /* the one of the two that is being measured */

/* An optional function exists in both. */
#define DRIVER_CAN(member) (own.member && program.member)

/* Find both. Exits if a NEEDED function is missing. */
void driver_find(void);

/* cuInit, the primary context, and a default pool that keeps its memory, by the program's way. */
void driver_begin(void);

/* Exit with a message unless the result is CUDA_SUCCESS. */
void must(CUresult result, const char *what);

/* Call a function of the current way; exit if it fails. */
#define CALL(function, ...) must(way->function(__VA_ARGS__), #function)

/* Start this program again, with other arguments (the last is NULL). Its output goes to the
 * descriptor `output`, or to this one's if that is negative. Exits if it cannot be started. */
pid_t start_again(const char *const arguments[], int output);

/* Find the function that a program gets from a library, or exit. */
void driver_find_program(void *library, const char *name, void *where);

#endif
