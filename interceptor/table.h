/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points that gpuslice knows, in one table.
 *
 * HOOK(name, arguments): stands in for the driver's function of that exported name. It is defined
 * in one of the files named beside it and exported under the driver's own name. A pointer to
 * the driver's function, wherever a program gets it from, is exchanged for it.
 *
 * CALL(name, arguments): only called, never replaced.
 *
 * Which memory each one moves is said where it is defined. What is not here passes untouched,
 * and driver truth finds what it holds.
 */
#ifndef GPUSLICE_TABLE_H
#define GPUSLICE_TABLE_H

#include "cuda_abi.h"

#define GPUSLICE_TABLE(HOOK, CALL)                                                                 \
	/* hook_alloc.c: linear memory */                                                          \
	HOOK(cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned int bytes))                           \
	HOOK(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))                                 \
	HOOK(cuMemAllocPitch, (CUdeviceptr_v1 * pointer, unsigned int *pitch, unsigned int width,  \
	                       unsigned int height, unsigned int element))                         \
	HOOK(cuMemAllocPitch_v2, (CUdeviceptr * pointer, size_t * pitch, size_t width,             \
	                          size_t height, unsigned int element))                            \
	HOOK(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags))         \
	HOOK(cuMemFree, (CUdeviceptr_v1 pointer))                                                  \
	HOOK(cuMemFree_v2, (CUdeviceptr pointer))                                                  \
	HOOK(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))                               \
	HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream))                          \
	/* hook_pool.c: stream-ordered memory */                                                   \
	HOOK(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream))              \
	HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream))         \
	HOOK(cuMemAllocFromPoolAsync,                                                              \
	     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))            \
	HOOK(cuMemAllocFromPoolAsync_ptsz,                                                         \
	     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))            \
	HOOK(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties))             \
	HOOK(cuMemPoolDestroy, (CUmemoryPool pool))                                                \
	HOOK(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep))                                    \
	HOOK(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value))               \
	HOOK(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool))                             \
	HOOK(cuMemSetMemPool, (CUmemLocation * location, int type, CUmemoryPool pool))             \
	/* hook_sync.c: where pools shrink */                                                      \
	HOOK(cuCtxSynchronize, (void))                                                             \
	HOOK(cuCtxSynchronize_v2, (CUcontext context))                                             \
	HOOK(cuStreamSynchronize, (CUstream stream))                                               \
	HOOK(cuStreamSynchronize_ptsz, (CUstream stream))                                          \
	HOOK(cuEventSynchronize, (void *event))                                                    \
	/* hook_vmm.c: physical memory and its mappings */                                         \
	HOOK(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,                    \
	                   const CUmemAllocationProp *properties, unsigned long long flags))       \
	HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle))                                  \
	HOOK(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset,                          \
	                CUmemGenericAllocationHandle handle, unsigned long long flags))            \
	HOOK(cuMemUnmap, (CUdeviceptr address, size_t bytes))                                      \
	HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address))  \
	/* hook_array.c */                                                                         \
	HOOK(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape))              \
	HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *shape))              \
	HOOK(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape))          \
	HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *shape))          \
	HOOK(cuArrayDestroy, (CUarray array))                                                      \
	HOOK(cuMipmappedArrayCreate, (CUmipmappedArray * array,                                    \
	                              const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels))  \
	HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array))                                    \
	/* hook_context.c */                                                                       \
	HOOK(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))              \
	HOOK(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))           \
	HOOK(cuCtxCreate_v3, (CUcontext * context, void *parameters, int count,                    \
	                      unsigned int flags, CUdevice device))                                \
	HOOK(cuCtxCreate_v4,                                                                       \
	     (CUcontext * context, void *parameters, unsigned int flags, CUdevice device))         \
	HOOK(cuCtxDestroy, (CUcontext context))                                                    \
	HOOK(cuCtxDestroy_v2, (CUcontext context))                                                 \
	HOOK(cuCtxDetach, (CUcontext context))                                                     \
	HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                     \
	HOOK(cuDevicePrimaryCtxRelease, (CUdevice device))                                         \
	HOOK(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                      \
	HOOK(cuDevicePrimaryCtxReset, (CUdevice device))                                           \
	HOOK(cuDevicePrimaryCtxReset_v2, (CUdevice device))                                        \
	/* hook_info.c: what programs are shown */                                                 \
	HOOK(cuMemGetInfo, (unsigned int *available, unsigned int *total))                         \
	HOOK(cuMemGetInfo_v2, (size_t * available, size_t * total))                                \
	HOOK(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device))                             \
	HOOK(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                               \
	/* route.c */                                                                              \
	HOOK(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags))   \
	HOOK(cuGetProcAddress_v2,                                                                  \
	     (const char *name, void **function, int version, uint64_t flags, int *status))        \
	CALL(cuCtxGetCurrent, (CUcontext * context))                                               \
	CALL(cuCtxGetDevice, (CUdevice * device))                                                  \
	CALL(cuDeviceGetCount, (int *count))                                                       \
	CALL(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                    \
	CALL(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                 \
	CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device))                    \
	CALL(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device))                           \
	CALL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))      \
	CALL(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value))               \
	CALL(cuStreamIsCapturing, (CUstream stream, int *status))                                  \
	CALL(cuStreamIsCapturing_ptsz, (CUstream stream, int *status))                             \
	CALL(cuStreamGetDevice, (CUstream stream, CUdevice * device))                              \
	CALL(cuStreamGetDevice_ptsz, (CUstream stream, CUdevice * device))

/* Prototypes. Only the hooks are visible outside the library. */
#define GPUSLICE_EXPORT __attribute__((visibility("default")))
#define GPUSLICE_PROTOTYPE(name, arguments) GPUSLICE_EXPORT CUresult name arguments;
GPUSLICE_TABLE(GPUSLICE_PROTOTYPE, GPUSLICE_PROTOTYPE)
#undef GPUSLICE_PROTOTYPE

enum entry_point {
#define GPUSLICE_ID(name, arguments) ID_##name,
	GPUSLICE_TABLE(GPUSLICE_ID, GPUSLICE_ID)
#undef GPUSLICE_ID
	    ENTRY_POINTS
};

/* The driver's own functions, by entry point; NULL where this driver has none. */
extern void *driver_function[ENTRY_POINTS];

/* Fill driver_function if libcuda is loaded. Returns whether it is. */
int driver_find(void);

/* The driver's own function of that name, typed. */
#define DRIVER(name) ((__typeof__(&name))driver_function[ID_##name])

/* Whether it can be called. A hook begins with this: a program may call us, by our
 * exported name, before anything else made us look for the driver. */
#define DRIVER_HAS(name) (driver_function[ID_##name] || (driver_find(), driver_function[ID_##name]))

#endif
