/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points that gpuslice knows, in one table.
 *
 * HOOK(name, arguments, charged, released by): stands in for the driver's function of that exported
 * name. It is defined in the file that its GROUP names and exported under the driver's own name. A
 * pointer to the driver's function, wherever a program gets it from, is exchanged for it. `charged`
 * says what and when; `released by`, what gives it back: "" if there is nothing to give back. Every
 * version of a name that is hooked has a row: see unknown_version() in route.c.
 *
 * CALL(name, arguments): only called, never replaced.
 *
 * All else that the driver exports passes untouched; passes.h says why each may. Hooks, exports.txt
 * and docs/coverage.md come from these rows: after a change, `make generate`.
 */
#ifndef GPUSLICE_TABLE_H
#define GPUSLICE_TABLE_H

#include "cuda_abi.h"

#define GPUSLICE_TABLE(GROUP, HOOK, CALL)                                                          \
	GROUP("Linear memory", "hook_alloc.c")                                                     \
	HOOK(cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned int bytes),                           \
	     "whole blocks of 2 MiB, before the call; up to 1 MiB, after it",                      \
	     "cuMemFree, cuMemFreeAsync, the context's end")                                       \
	HOOK(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes),                                 \
	     "whole blocks of 2 MiB, before the call; up to 1 MiB, after it",                      \
	     "cuMemFree, cuMemFreeAsync, the context's end")                                       \
	HOOK(cuMemAllocPitch,                                                                      \
	     (CUdeviceptr_v1 * pointer, unsigned int *pitch, unsigned int width,                   \
	      unsigned int height, unsigned int element),                                          \
	     "as cuMemAlloc; what a larger pitch adds, after the call",                            \
	     "cuMemFree, cuMemFreeAsync, the context's end")                                       \
	HOOK(cuMemAllocPitch_v2,                                                                   \
	     (CUdeviceptr * pointer, size_t * pitch, size_t width, size_t height,                  \
	      unsigned int element),                                                               \
	     "as cuMemAlloc; what a larger pitch adds, after the call",                            \
	     "cuMemFree, cuMemFreeAsync, the context's end")                                       \
	HOOK(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags),         \
	     "whole blocks of 2 MiB, before the call, wherever it resides",                        \
	     "cuMemFree, the context's end")                                                       \
	HOOK(cuMemFree, (CUdeviceptr_v1 pointer), "gives back, after the call", "")                \
	HOOK(cuMemFree_v2, (CUdeviceptr pointer), "gives back, after the call", "")                \
	HOOK(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream),                               \
	     "gives back linear memory; what is a pool's stays with the pool", "")                 \
	HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream),                          \
	     "gives back linear memory; what is a pool's stays with the pool", "")                 \
	GROUP("Stream-ordered memory", "hook_pool.c")                                              \
	HOOK(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream),              \
	     "the pool's growth, in steps of 32 MiB, before the call",                             \
	     "whatever shrinks the pool")                                                          \
	HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream),         \
	     "the pool's growth, in steps of 32 MiB, before the call",                             \
	     "whatever shrinks the pool")                                                          \
	HOOK(cuMemAllocFromPoolAsync,                                                              \
	     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),            \
	     "the pool's growth, in steps of 32 MiB, before the call",                             \
	     "whatever shrinks the pool")                                                          \
	HOOK(cuMemAllocFromPoolAsync_ptsz,                                                         \
	     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),            \
	     "the pool's growth, in steps of 32 MiB, before the call",                             \
	     "whatever shrinks the pool")                                                          \
	HOOK(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties),             \
	     "nothing; learns where the pool is", "cuMemPoolDestroy")                              \
	HOOK(cuMemPoolDestroy, (CUmemoryPool pool),                                                \
	     "gives back what is not in use, after the call", "")                                  \
	HOOK(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep),                                    \
	     "gives back what the pool shrank by, after the call", "")                             \
	HOOK(cuMemPoolSetAttribute, (CUmemoryPool pool, int attribute, void *value),               \
	     "nothing; learns the release threshold", "")                                          \
	HOOK(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool),                             \
	     "nothing; another pool is current from now on", "")                                   \
	HOOK(cuMemSetMemPool, (CUmemLocation * location, int type, CUmemoryPool pool),             \
	     "nothing; another pool is current from now on", "")                                   \
	GROUP("Waiting, where pools shrink", "hook_sync.c")                                        \
	HOOK(cuCtxSynchronize, (void), "gives back what pools shrank by, after the call", "")      \
	HOOK(cuCtxSynchronize_v2, (CUcontext context),                                             \
	     "gives back what pools shrank by, after the call", "")                                \
	HOOK(cuStreamSynchronize, (CUstream stream),                                               \
	     "gives back what pools shrank by, after the call", "")                                \
	HOOK(cuStreamSynchronize_ptsz, (CUstream stream),                                          \
	     "gives back what pools shrank by, after the call", "")                                \
	HOOK(cuEventSynchronize, (void *event), "gives back what pools shrank by, after the call", \
	     "")                                                                                   \
	GROUP("Physical memory and its mappings", "hook_vmm.c")                                    \
	HOOK(cuMemCreate,                                                                          \
	     (CUmemGenericAllocationHandle * handle, size_t bytes,                                 \
	      const CUmemAllocationProp *properties, unsigned long long flags),                    \
	     "the size, before the call; nothing if it is on the host",                            \
	     "the last cuMemRelease or cuMemUnmap")                                                \
	HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle),                                  \
	     "gives back, after the call, if nothing holds it any more", "")                       \
	HOOK(cuMemMap,                                                                             \
	     (CUdeviceptr address, size_t bytes, size_t offset,                                    \
	      CUmemGenericAllocationHandle handle, unsigned long long flags),                      \
	     "nothing; the mapping holds the memory", "cuMemUnmap")                                \
	HOOK(cuMemUnmap, (CUdeviceptr address, size_t bytes),                                      \
	     "gives back, after the call, if nothing holds it any more", "")                       \
	HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),  \
	     "nothing; the handle holds the memory", "cuMemRelease")                               \
	GROUP("What else holds physical memory", "hook_bind.c")                                    \
	HOOK(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned int count, CUstream stream),     \
	     "nothing; a mapped tile holds the memory",                                            \
	     "cuMemMapArrayAsync, cuArrayDestroy, cuMipmappedArrayDestroy")                        \
	HOOK(cuMemMapArrayAsync_ptsz,                                                              \
	     (CUarrayMapInfo * list, unsigned int count, CUstream stream),                         \
	     "nothing; a mapped tile holds the memory",                                            \
	     "cuMemMapArrayAsync, cuArrayDestroy, cuMipmappedArrayDestroy")                        \
	HOOK(cuMulticastCreate,                                                                    \
	     (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp *properties),     \
	     "nothing; what is bound to it is held", "cuMemRelease")                               \
	HOOK(cuMulticastBindMem,                                                                   \
	     (CUmemGenericAllocationHandle multicast, size_t offset,                               \
	      CUmemGenericAllocationHandle handle, size_t from, size_t bytes,                      \
	      unsigned long long flags),                                                           \
	     "nothing; the binding holds the memory",                                              \
	     "cuMulticastUnbind, the multicast object's end")                                      \
	HOOK(cuMulticastBindMem_v2,                                                                \
	     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,              \
	      CUmemGenericAllocationHandle handle, size_t from, size_t bytes,                      \
	      unsigned long long flags),                                                           \
	     "nothing; the binding holds the memory",                                              \
	     "cuMulticastUnbind, the multicast object's end")                                      \
	HOOK(cuMulticastBindAddr,                                                                  \
	     (CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,          \
	      size_t bytes, unsigned long long flags),                                             \
	     "nothing; the binding holds the memory",                                              \
	     "cuMulticastUnbind, the multicast object's end")                                      \
	HOOK(cuMulticastBindAddr_v2,                                                               \
	     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,              \
	      CUdeviceptr address, size_t bytes, unsigned long long flags),                        \
	     "nothing; the binding holds the memory",                                              \
	     "cuMulticastUnbind, the multicast object's end")                                      \
	HOOK(cuMulticastUnbind,                                                                    \
	     (CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,              \
	      size_t bytes),                                                                       \
	     "gives back, after the call, if nothing holds it any more", "")                       \
	GROUP("Memory that processes share", "hook_share.c")                                       \
	HOOK(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr pointer),                    \
	     "nothing; notes the handle as the slice's", "")                                       \
	HOOK(cuIpcOpenMemHandle,                                                                   \
	     (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),                   \
	     "nothing within the slice; else the size, after the call",                            \
	     "cuIpcCloseMemHandle, the context's end")                                             \
	HOOK(cuIpcOpenMemHandle_v2,                                                                \
	     (CUdeviceptr * pointer, CUipcMemHandle handle, unsigned int flags),                   \
	     "nothing within the slice; else the size, after the call",                            \
	     "cuIpcCloseMemHandle, the context's end")                                             \
	HOOK(cuIpcCloseMemHandle, (CUdeviceptr pointer), "gives back, after the call", "")         \
	HOOK(cuMemExportToShareableHandle,                                                         \
	     (void *shareable, CUmemGenericAllocationHandle handle, int type,                      \
	      unsigned long long flags),                                                           \
	     "nothing; marks what is exported as the slice's", "")                                 \
	HOOK(cuMemImportFromShareableHandle,                                                       \
	     (CUmemGenericAllocationHandle * handle, void *shareable, int type),                   \
	     "nothing within the slice; else what is mapped of it, before cuMemMap",               \
	     "the last cuMemRelease or cuMemUnmap")                                                \
	HOOK(cuMemPoolImportFromShareableHandle,                                                   \
	     (CUmemoryPool * pool, void *shareable, int type, unsigned long long flags),           \
	     "nothing: the exporter pays", "cuMemPoolDestroy")                                     \
	HOOK(cuImportExternalMemory,                                                               \
	     (CUexternalMemory * memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description),     \
	     "nothing if it is the slice's own export; else the size in the description, before "  \
	     "the call",                                                                           \
	     "cuDestroyExternalMemory, the context's end")                                         \
	HOOK(cuDestroyExternalMemory, (CUexternalMemory memory), "gives back, after the call", "") \
	GROUP("Arrays", "hook_array.c")                                                            \
	HOOK(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *shape),              \
	     "as the texture units lay it out, before the call",                                   \
	     "cuArrayDestroy, the context's end")                                                  \
	HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *shape),              \
	     "as the texture units lay it out, before the call",                                   \
	     "cuArrayDestroy, the context's end")                                                  \
	HOOK(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape),          \
	     "as the texture units lay it out, before the call",                                   \
	     "cuArrayDestroy, the context's end")                                                  \
	HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *shape),          \
	     "as the texture units lay it out, before the call",                                   \
	     "cuArrayDestroy, the context's end")                                                  \
	HOOK(cuArrayDestroy, (CUarray array), "gives back, after the call", "")                    \
	HOOK(                                                                                      \
	    cuMipmappedArrayCreate,                                                                \
	    (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels), \
	    "as the texture units lay it out, before the call",                                    \
	    "cuMipmappedArrayDestroy, the context's end")                                          \
	HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array), "gives back, after the call", "")  \
	GROUP("Contexts", "hook_context.c")                                                        \
	HOOK(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),              \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	HOOK(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),           \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	HOOK(cuCtxCreate_v3,                                                                       \
	     (CUcontext * context, void *parameters, int count, unsigned int flags,                \
	      CUdevice device),                                                                    \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	HOOK(cuCtxCreate_v4,                                                                       \
	     (CUcontext * context, void *parameters, unsigned int flags, CUdevice device),         \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	HOOK(cuCtxDestroy, (CUcontext context),                                                    \
	     "gives back the context and all in it, after the call", "")                           \
	HOOK(cuCtxDestroy_v2, (CUcontext context),                                                 \
	     "gives back the context and all in it, after the call", "")                           \
	HOOK(cuCtxDetach, (CUcontext context),                                                     \
	     "gives back the context and all in it, after the call", "")                           \
	HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),                     \
	     "as cuCtxCreate, if it was inactive",                                                 \
	     "cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxReset")                                 \
	HOOK(cuDevicePrimaryCtxRelease, (CUdevice device),                                         \
	     "gives back the context and all in it, once it is inactive", "")                      \
	HOOK(cuDevicePrimaryCtxRelease_v2, (CUdevice device),                                      \
	     "gives back the context and all in it, once it is inactive", "")                      \
	HOOK(cuDevicePrimaryCtxReset, (CUdevice device),                                           \
	     "gives back the context and all in it, once it is inactive", "")                      \
	HOOK(cuDevicePrimaryCtxReset_v2, (CUdevice device),                                        \
	     "gives back the context and all in it, once it is inactive", "")                      \
	HOOK(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),            \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	HOOK(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),         \
	     "what the last one took, before the call; what it took, after it",                    \
	     "cuCtxDestroy, cuCtxDetach")                                                          \
	GROUP("Green contexts", "hook_green.c")                                                    \
	HOOK(cuGreenCtxCreate,                                                                     \
	     (CUgreenCtx * green, void *description, CUdevice device, unsigned int flags),         \
	     "the primary context, if it was inactive, as cuDevicePrimaryCtxRetain",               \
	     "cuGreenCtxDestroy")                                                                  \
	HOOK(cuGreenCtxDestroy, (CUgreenCtx green),                                                \
	     "gives back the primary context and all in it, once it is inactive", "")              \
	HOOK(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green),                           \
	     "nothing; learns whose memory is allocated in it", "")                                \
	GROUP("Limits of a context", "hook_limit.c")                                               \
	HOOK(cuCtxSetLimit, (int limit, size_t value),                                             \
	     "the heap of kernels, before the call; other limits nothing", "the context's end")    \
	GROUP("Graphs that allocate", "hook_graph.c")                                              \
	HOOK(cuGraphInstantiate,                                                                   \
	     (CUgraphExec * graph, CUgraph source, CUgraphNode * error, char *log, size_t bytes),  \
	     "nothing; learns what the graph allocates", "cuGraphExecDestroy")                     \
	HOOK(cuGraphInstantiate_v2,                                                                \
	     (CUgraphExec * graph, CUgraph source, CUgraphNode * error, char *log, size_t bytes),  \
	     "nothing; learns what the graph allocates", "cuGraphExecDestroy")                     \
	HOOK(cuGraphInstantiateWithFlags,                                                          \
	     (CUgraphExec * graph, CUgraph source, unsigned long long flags),                      \
	     "nothing; learns what the graph allocates", "cuGraphExecDestroy")                     \
	HOOK(cuGraphInstantiateWithParams,                                                         \
	     (CUgraphExec * graph, CUgraph source, CUDA_GRAPH_INSTANTIATE_PARAMS * parameters),    \
	     "nothing; learns what the graph allocates", "cuGraphExecDestroy")                     \
	HOOK(cuGraphInstantiateWithParams_ptsz,                                                    \
	     (CUgraphExec * graph, CUgraph source, CUDA_GRAPH_INSTANTIATE_PARAMS * parameters),    \
	     "nothing; learns what the graph allocates", "cuGraphExecDestroy")                     \
	HOOK(cuGraphUpload, (CUgraphExec graph, CUstream stream), "as cuGraphLaunch",              \
	     "cuDeviceGraphMemTrim")                                                               \
	HOOK(cuGraphUpload_ptsz, (CUgraphExec graph, CUstream stream), "as cuGraphLaunch",         \
	     "cuDeviceGraphMemTrim")                                                               \
	HOOK(cuGraphLaunch, (CUgraphExec graph, CUstream stream),                                  \
	     "the most that its allocations may take, before the call; what the device's memory "  \
	     "of graphs grew by, after it; a graph without allocations: nothing",                  \
	     "cuDeviceGraphMemTrim")                                                               \
	HOOK(cuGraphLaunch_ptsz, (CUgraphExec graph, CUstream stream),                             \
	     "the most that its allocations may take, before the call; what the device's memory "  \
	     "of graphs grew by, after it; a graph without allocations: nothing",                  \
	     "cuDeviceGraphMemTrim")                                                               \
	HOOK(cuGraphExecDestroy, (CUgraphExec graph),                                              \
	     "nothing; its memory stays with the device's memory of graphs", "")                   \
	HOOK(cuDeviceGraphMemTrim, (CUdevice device),                                              \
	     "gives back what the device's memory of graphs shrank by, after the call", "")        \
	GROUP("Checkpoints", "hook_checkpoint.c")                                                  \
	HOOK(cuCheckpointProcessCheckpoint, (int pid, void *arguments),                            \
	     "gives back what the process holds, after the call, once driver truth says that it "  \
	     "is gone",                                                                            \
	     "")                                                                                   \
	HOOK(cuCheckpointProcessRestore, (int pid, void *arguments),                               \
	     "all that the process held, before the call", "cuCheckpointProcessCheckpoint")        \
	GROUP("What programs are shown", "hook_info.c")                                            \
	HOOK(cuMemGetInfo, (unsigned int *available, unsigned int *total),                         \
	     "nothing; shows what the slice has and has left", "")                                 \
	HOOK(cuMemGetInfo_v2, (size_t * available, size_t * total),                                \
	     "nothing; shows what the slice has and has left", "")                                 \
	HOOK(cuDeviceTotalMem, (unsigned int *bytes, CUdevice device),                             \
	     "nothing; shows what the slice has", "")                                              \
	HOOK(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device),                               \
	     "nothing; shows what the slice has", "")                                              \
	GROUP("Ways to the driver", "route.c")                                                     \
	HOOK(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags),   \
	     "nothing; hands out these hooks", "")                                                 \
	HOOK(cuGetProcAddress_v2,                                                                  \
	     (const char *name, void **function, int version, uint64_t flags, int *status),        \
	     "nothing; hands out these hooks", "")                                                 \
	CALL(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void *value))          \
	CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph * graph))                   \
	CALL(cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, size_t * count))                \
	CALL(cuGraphMemAllocNodeGetParams,                                                         \
	     (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS * parameters))                          \
	CALL(cuGraphNodeGetType, (CUgraphNode node, int *type))                                    \
	CALL(cuCtxGetCurrent, (CUcontext * context))                                               \
	CALL(cuCtxGetDevice, (CUdevice * device))                                                  \
	CALL(cuDeviceGetCount, (int *count))                                                       \
	CALL(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))                                    \
	CALL(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                 \
	CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device))                    \
	CALL(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device))                           \
	CALL(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))      \
	CALL(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * bytes, CUdeviceptr pointer))   \
	CALL(cuMemGetAllocationPropertiesFromHandle,                                               \
	     (CUmemAllocationProp * properties, CUmemGenericAllocationHandle handle))              \
	CALL(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value))               \
	CALL(cuStreamIsCapturing, (CUstream stream, int *status))                                  \
	CALL(cuStreamIsCapturing_ptsz, (CUstream stream, int *status))                             \
	CALL(cuStreamGetDevice, (CUstream stream, CUdevice * device))                              \
	CALL(cuStreamGetDevice_ptsz, (CUstream stream, CUdevice * device))

/* Prototypes. Only the hooks are visible outside the library. */
#define GPUSLICE_EXPORT __attribute__((visibility("default")))
#define GPUSLICE_NO_GROUP(title, file)
#define GPUSLICE_HOOK_PROTOTYPE(name, arguments, charged, released)                                \
	GPUSLICE_EXPORT CUresult name arguments;
#define GPUSLICE_CALL_PROTOTYPE(name, arguments) CUresult name arguments;
GPUSLICE_TABLE(GPUSLICE_NO_GROUP, GPUSLICE_HOOK_PROTOTYPE, GPUSLICE_CALL_PROTOTYPE)
#undef GPUSLICE_HOOK_PROTOTYPE
#undef GPUSLICE_CALL_PROTOTYPE

enum entry_point {
#define GPUSLICE_HOOK_ID(name, arguments, charged, released) ID_##name,
#define GPUSLICE_CALL_ID(name, arguments) ID_##name,
	GPUSLICE_TABLE(GPUSLICE_NO_GROUP, GPUSLICE_HOOK_ID, GPUSLICE_CALL_ID)
#undef GPUSLICE_HOOK_ID
#undef GPUSLICE_CALL_ID
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
