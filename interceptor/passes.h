/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's entry points that pass untouched, and why each may. With table.h this is all that
 * driver 580.159.04 exports: test/interceptor/coverage_test.go compares them.
 *
 * GROUP(title): what the rows below it have in common.
 *
 * PASS(name, reason).
 *
 * PASS_FAMILY("prefix*", reason): every name that begins so, of any version, but for those that
 * have a row of their own here or a CALL row in table.h. Only where no name can move memory: the
 * test names the prefixes of those that can, and these need rows of their own.
 *
 * NOT_IN_580(name, which): the row of that name, here or in table.h, is of another driver: that
 * of the CUDA version `which`.
 */
#ifndef GPUSLICE_PASSES_H
#define GPUSLICE_PASSES_H

#define GPUSLICE_PASSES(GROUP, PASS, PASS_FAMILY, NOT_IN_580)                                      \
	GROUP("Near relatives of what is hooked")                                                  \
	PASS(cuGraphAddMemAllocNode, "a node takes nothing: its graph does, when it is launched")  \
	PASS(cuGraphAddMemFreeNode, "a node takes nothing")                                        \
	PASS(cuGraphAddNode, "a node takes nothing: its graph does, when it is launched")          \
	PASS(cuGraphAddNode_v2, "a node takes nothing: its graph does, when it is launched")       \
	PASS(cuDeviceSetGraphMemAttribute, "resets a figure")                                      \
	PASS(cuMemGetHandleForAddressRange,                                                        \
	     "for other devices; the memory is charged until it is freed")                         \
	PASS(cuMemPoolExportPointer, "the pool is charged to its maker")                           \
	PASS(cuMemPoolExportToShareableHandle, "the pool is charged to its maker")                 \
	PASS(cuMemPoolImportPointer, "the pool is charged to its maker")                           \
	PASS(cuExternalMemoryGetMappedBuffer, "part of what was imported, and charged then")       \
	PASS(cuExternalMemoryGetMappedMipmappedArray,                                              \
	     "part of what was imported, and charged then")                                        \
	PASS(cuVDPAUCtxCreate, "driver truth: the context")                                        \
	PASS(cuVDPAUCtxCreate_v2, "driver truth: the context")                                     \
	PASS(cuCtxAttach, "driver truth, after cuCtxDetach")                                       \
	PASS(cuMulticastAddDevice, "takes none of the device's memory")                            \
	NOT_IN_580(cuMulticastBindAddr_v2, "CUDA 13.1")                                            \
	NOT_IN_580(cuMulticastBindMem_v2, "CUDA 13.1")                                             \
	PASS(cuMulticastGetGranularity, "only tells")                                              \
	PASS(cuCheckpointProcessGetRestoreThreadId, "moves no memory")                             \
	PASS(cuCheckpointProcessGetState, "moves no memory")                                       \
	PASS(cuCheckpointProcessLock, "moves no memory")                                           \
	PASS(cuCheckpointProcessUnlock, "moves no memory")                                         \
	GROUP("Overhead, which driver truth finds")                                                \
	PASS(cuFuncLoad, "overhead: code")                                                         \
	PASS(cuLibraryLoadData, "overhead: code")                                                  \
	PASS(cuLibraryLoadFromFile, "overhead: code")                                              \
	PASS(cuLinkAddData, "overhead: code")                                                      \
	PASS(cuLinkAddData_v2, "overhead: code")                                                   \
	PASS(cuLinkAddFile, "overhead: code")                                                      \
	PASS(cuLinkAddFile_v2, "overhead: code")                                                   \
	PASS(cuLinkComplete, "overhead: code")                                                     \
	PASS(cuLinkCreate, "overhead: code")                                                       \
	PASS(cuLinkCreate_v2, "overhead: code")                                                    \
	PASS(cuModuleLoad, "overhead: code")                                                       \
	PASS(cuModuleLoadData, "overhead: code")                                                   \
	PASS(cuModuleLoadDataEx, "overhead: code")                                                 \
	PASS(cuModuleLoadFatBinary, "overhead: code")                                              \
	PASS(cuLibraryUnload, "overhead: code")                                                    \
	PASS(cuLinkDestroy, "overhead: code")                                                      \
	PASS(cuModuleUnload, "overhead: code")                                                     \
	PASS(cuLibraryGetGlobal, "part of memory that came with the code")                         \
	PASS(cuLibraryGetManaged, "part of memory that came with the code")                        \
	PASS(cuModuleGetGlobal, "part of memory that came with the code")                          \
	PASS(cuModuleGetGlobal_v2, "part of memory that came with the code")                       \
	PASS(cuModuleGetLoadingMode, "only tells")                                                 \
	PASS(cuLaunch, "overhead: code, local memory")                                             \
	PASS(cuLaunchCooperativeKernel, "overhead: code, local memory")                            \
	PASS(cuLaunchCooperativeKernelMultiDevice, "overhead: code, local memory")                 \
	PASS(cuLaunchCooperativeKernel_ptsz, "overhead: code, local memory")                       \
	PASS(cuLaunchGrid, "overhead: code, local memory")                                         \
	PASS(cuLaunchGridAsync, "overhead: code, local memory")                                    \
	PASS(cuLaunchKernel, "overhead: code, local memory")                                       \
	PASS(cuLaunchKernelEx, "overhead: code, local memory")                                     \
	PASS(cuLaunchKernelEx_ptsz, "overhead: code, local memory")                                \
	PASS(cuLaunchKernel_ptsz, "overhead: code, local memory")                                  \
	PASS(cuEventCreate, "overhead: a few KiB")                                                 \
	PASS(cuEventDestroy, "overhead: a few KiB")                                                \
	PASS(cuEventDestroy_v2, "overhead: a few KiB")                                             \
	PASS(cuGreenCtxStreamCreate, "overhead: a few KiB")                                        \
	PASS(cuStreamCreate, "overhead: a few KiB")                                                \
	PASS(cuStreamCreateWithPriority, "overhead: a few KiB")                                    \
	PASS(cuStreamDestroy, "overhead: a few KiB")                                               \
	PASS(cuStreamDestroy_v2, "overhead: a few KiB")                                            \
	PASS(cuInit, "makes no context yet")                                                       \
	PASS(cuGetExportTable, "undocumented functions")                                           \
	GROUP("Host memory, which is not VRAM")                                                    \
	PASS(cuMemAllocHost, "host memory")                                                        \
	PASS(cuMemAllocHost_v2, "host memory")                                                     \
	PASS(cuMemFreeHost, "host memory")                                                         \
	PASS(cuMemHostAlloc, "host memory")                                                        \
	PASS(cuMemHostRegister, "host memory")                                                     \
	PASS(cuMemHostRegister_v2, "host memory")                                                  \
	PASS(cuMemHostUnregister, "host memory")                                                   \
	PASS(cuMemHostGetDevicePointer, "only tells")                                              \
	PASS(cuMemHostGetDevicePointer_v2, "only tells")                                           \
	PASS(cuMemHostGetFlags, "only tells")                                                      \
	GROUP("Calls about memory that neither take nor give any")                                 \
	PASS(cuMemAddressFree, "addresses alone cost nothing")                                     \
	PASS(cuMemAddressReserve, "addresses alone cost nothing")                                  \
	PASS(cuMemPoolSetAccess, "who may use memory that is charged already")                     \
	PASS(cuMemSetAccess, "who may use memory that is charged already")                         \
	PASS(cuMemGetAccess, "only tells")                                                         \
	PASS(cuMemGetAddressRange, "only tells")                                                   \
	PASS(cuMemGetAllocationGranularity, "only tells")                                          \
	PASS(cuMemGetAttribute, "only tells")                                                      \
	PASS(cuMemGetAttribute_v2, "only tells")                                                   \
	PASS(cuMemGetDefaultMemPool, "only tells")                                                 \
	PASS(cuMemGetMemPool, "only tells")                                                        \
	PASS(cuMemPoolGetAccess, "only tells")                                                     \
	PASS(cuMemRangeGetAttribute, "only tells")                                                 \
	PASS(cuMemRangeGetAttributes, "only tells")                                                \
	PASS(cuMemAdvise, "managed memory is charged, wherever it is")                             \
	PASS(cuMemAdvise_v2, "managed memory is charged, wherever it is")                          \
	PASS(cuMemDiscardAndPrefetchBatchAsync, "managed memory is charged, wherever it is")       \
	PASS(cuMemDiscardAndPrefetchBatchAsync_ptsz, "managed memory is charged, wherever it is")  \
	PASS(cuMemDiscardBatchAsync, "managed memory is charged, wherever it is")                  \
	PASS(cuMemDiscardBatchAsync_ptsz, "managed memory is charged, wherever it is")             \
	PASS(cuMemPrefetchAsync, "managed memory is charged, wherever it is")                      \
	PASS(cuMemPrefetchAsync_ptsz, "managed memory is charged, wherever it is")                 \
	PASS(cuMemPrefetchAsync_v2, "managed memory is charged, wherever it is")                   \
	PASS(cuMemPrefetchAsync_v2_ptsz, "managed memory is charged, wherever it is")              \
	PASS(cuMemPrefetchBatchAsync, "managed memory is charged, wherever it is")                 \
	PASS(cuMemPrefetchBatchAsync_ptsz, "managed memory is charged, wherever it is")            \
	PASS(cuStreamAttachMemAsync, "managed memory is charged, wherever it is")                  \
	PASS(cuStreamAttachMemAsync_ptsz, "managed memory is charged, wherever it is")             \
	PASS(cuMemBatchDecompressAsync, "works in memory that is charged already")                 \
	PASS(cuMemBatchDecompressAsync_ptsz, "works in memory that is charged already")            \
	PASS(cuArrayGetPlane, "part of an array that is charged already")                          \
	PASS(cuMipmappedArrayGetLevel, "part of an array that is charged already")                 \
	PASS(cuArray3DGetDescriptor, "only tells")                                                 \
	PASS(cuArray3DGetDescriptor_v2, "only tells")                                              \
	PASS(cuArrayGetDescriptor, "only tells")                                                   \
	PASS(cuArrayGetDescriptor_v2, "only tells")                                                \
	PASS(cuArrayGetMemoryRequirements, "only tells")                                           \
	PASS(cuArrayGetSparseProperties, "only tells")                                             \
	PASS(cuMipmappedArrayGetMemoryRequirements, "only tells")                                  \
	PASS(cuMipmappedArrayGetSparseProperties, "only tells")                                    \
	PASS(cuDevicePrimaryCtxSetFlags, "how a context behaves")                                  \
	PASS(cuDevicePrimaryCtxSetFlags_v2, "how a context behaves")                               \
	PASS(cuDestroyExternalSemaphore, "events and semaphores, not memory")                      \
	PASS(cuImportExternalSemaphore, "events and semaphores, not memory")                       \
	PASS(cuIpcGetEventHandle, "events and semaphores, not memory")                             \
	PASS(cuIpcOpenEventHandle, "events and semaphores, not memory")                            \
	PASS(cuGraphAddBatchMemOpNode, "a node takes nothing")                                     \
	PASS(cuGraphAddChildGraphNode, "a node takes nothing")                                     \
	PASS(cuGraphAddEmptyNode, "a node takes nothing")                                          \
	PASS(cuGraphAddEventRecordNode, "a node takes nothing")                                    \
	PASS(cuGraphAddEventWaitNode, "a node takes nothing")                                      \
	PASS(cuGraphAddExternalSemaphoresSignalNode, "a node takes nothing")                       \
	PASS(cuGraphAddExternalSemaphoresWaitNode, "a node takes nothing")                         \
	PASS(cuGraphAddHostNode, "a node takes nothing")                                           \
	PASS(cuGraphAddKernelNode, "a node takes nothing")                                         \
	PASS(cuGraphAddKernelNode_v2, "a node takes nothing")                                      \
	PASS(cuGraphAddMemcpyNode, "a node takes nothing")                                         \
	PASS(cuGraphAddMemsetNode, "a node takes nothing")                                         \
	PASS(cuGraphAddDependencies, "the order of nodes")                                         \
	PASS(cuGraphAddDependencies_v2, "the order of nodes")                                      \
	PASS(cuGraphExecGetFlags, "only tells")                                                    \
	PASS(cuGraphExecBatchMemOpNodeSetParams, "changes what the next launch does")              \
	PASS(cuGraphExecChildGraphNodeSetParams, "changes what the next launch does")              \
	PASS(cuGraphExecEventRecordNodeSetEvent, "changes what the next launch does")              \
	PASS(cuGraphExecEventWaitNodeSetEvent, "changes what the next launch does")                \
	PASS(cuGraphExecExternalSemaphoresSignalNodeSetParams,                                     \
	     "changes what the next launch does")                                                  \
	PASS(cuGraphExecExternalSemaphoresWaitNodeSetParams, "changes what the next launch does")  \
	PASS(cuGraphExecHostNodeSetParams, "changes what the next launch does")                    \
	PASS(cuGraphExecKernelNodeSetParams, "changes what the next launch does")                  \
	PASS(cuGraphExecKernelNodeSetParams_v2, "changes what the next launch does")               \
	PASS(cuGraphExecMemcpyNodeSetParams, "changes what the next launch does")                  \
	PASS(cuGraphExecMemsetNodeSetParams, "changes what the next launch does")                  \
	PASS(cuGraphExecNodeSetParams, "changes what the next launch does")                        \
	PASS(cuGraphExecUpdate, "changes what the next launch does")                               \
	PASS(cuGraphExecUpdate_v2, "changes what the next launch does")                            \
	PASS(cuGraphMemFreeNodeGetParams, "only tells")                                            \
	PASS(cuGraphMemcpyNodeGetParams, "about a node that allocates nothing")                    \
	PASS(cuGraphMemcpyNodeSetParams, "about a node that allocates nothing")                    \
	PASS(cuGraphMemsetNodeGetParams, "about a node that allocates nothing")                    \
	PASS(cuGraphMemsetNodeSetParams, "about a node that allocates nothing")                    \
	GROUP("Graphics and video, whose memory driver truth finds")                               \
	PASS(cuEGLApiInit, "driver truth: memory of another interface")                            \
	PASS(cuEGLStreamConsumerAcquireFrame, "driver truth: memory of another interface")         \
	PASS(cuEGLStreamConsumerConnect, "driver truth: memory of another interface")              \
	PASS(cuEGLStreamConsumerConnectWithFlags, "driver truth: memory of another interface")     \
	PASS(cuEGLStreamConsumerDisconnect, "driver truth: memory of another interface")           \
	PASS(cuEGLStreamConsumerReleaseFrame, "driver truth: memory of another interface")         \
	PASS(cuEGLStreamProducerConnect, "driver truth: memory of another interface")              \
	PASS(cuEGLStreamProducerDisconnect, "driver truth: memory of another interface")           \
	PASS(cuEGLStreamProducerPresentFrame, "driver truth: memory of another interface")         \
	PASS(cuEGLStreamProducerReturnFrame, "driver truth: memory of another interface")          \
	PASS(cuGLGetDevices, "driver truth: memory of another interface")                          \
	PASS(cuGLGetDevices_v2, "driver truth: memory of another interface")                       \
	PASS(cuGLInit, "driver truth: memory of another interface")                                \
	PASS(cuGLMapBufferObject, "driver truth: memory of another interface")                     \
	PASS(cuGLMapBufferObjectAsync, "driver truth: memory of another interface")                \
	PASS(cuGLMapBufferObjectAsync_v2, "driver truth: memory of another interface")             \
	PASS(cuGLMapBufferObjectAsync_v2_ptsz, "driver truth: memory of another interface")        \
	PASS(cuGLMapBufferObject_v2, "driver truth: memory of another interface")                  \
	PASS(cuGLMapBufferObject_v2_ptds, "driver truth: memory of another interface")             \
	PASS(cuGLRegisterBufferObject, "driver truth: memory of another interface")                \
	PASS(cuGLSetBufferObjectMapFlags, "driver truth: memory of another interface")             \
	PASS(cuGLUnmapBufferObject, "driver truth: memory of another interface")                   \
	PASS(cuGLUnmapBufferObjectAsync, "driver truth: memory of another interface")              \
	PASS(cuGLUnregisterBufferObject, "driver truth: memory of another interface")              \
	PASS(cuGraphicsEGLRegisterImage, "driver truth: memory of another interface")              \
	PASS(cuGraphicsGLRegisterBuffer, "driver truth: memory of another interface")              \
	PASS(cuGraphicsGLRegisterImage, "driver truth: memory of another interface")               \
	PASS(cuGraphicsMapResources, "driver truth: memory of another interface")                  \
	PASS(cuGraphicsMapResources_ptsz, "driver truth: memory of another interface")             \
	PASS(cuGraphicsResourceGetMappedEglFrame, "driver truth: memory of another interface")     \
	PASS(cuGraphicsResourceGetMappedMipmappedArray,                                            \
	     "driver truth: memory of another interface")                                          \
	PASS(cuGraphicsResourceGetMappedPointer, "driver truth: memory of another interface")      \
	PASS(cuGraphicsResourceGetMappedPointer_v2, "driver truth: memory of another interface")   \
	PASS(cuGraphicsResourceSetMapFlags, "driver truth: memory of another interface")           \
	PASS(cuGraphicsResourceSetMapFlags_v2, "driver truth: memory of another interface")        \
	PASS(cuGraphicsSubResourceGetMappedArray, "driver truth: memory of another interface")     \
	PASS(cuGraphicsUnmapResources, "driver truth: memory of another interface")                \
	PASS(cuGraphicsUnmapResources_ptsz, "driver truth: memory of another interface")           \
	PASS(cuGraphicsUnregisterResource, "driver truth: memory of another interface")            \
	PASS(cuGraphicsVDPAURegisterOutputSurface, "driver truth: memory of another interface")    \
	PASS(cuGraphicsVDPAURegisterVideoSurface, "driver truth: memory of another interface")     \
	PASS(cuVDPAUGetDevice, "driver truth: memory of another interface")                        \
	GROUP("Families that move no memory")                                                      \
	PASS_FAMILY("cuCoredump*", "what a crash writes")                                          \
	PASS_FAMILY("cuCtxDisablePeerAccess*", "who may use memory")                               \
	PASS_FAMILY("cuCtxEnablePeerAccess*", "who may use memory")                                \
	PASS_FAMILY("cuCtxGet*", "only tells")                                                     \
	PASS_FAMILY("cuCtxPopCurrent*", "which context is current")                                \
	PASS_FAMILY("cuCtxPushCurrent*", "which context is current")                               \
	PASS_FAMILY("cuCtxRecordEvent*", "orders work")                                            \
	PASS_FAMILY("cuCtxResetPersistingL2Cache*", "about the cache")                             \
	PASS_FAMILY("cuCtxSetCacheConfig*", "about the cache")                                     \
	PASS_FAMILY("cuCtxSetCurrent*", "which context is current")                                \
	PASS_FAMILY("cuCtxSetFlags*", "how a context behaves")                                     \
	PASS_FAMILY("cuCtxSetSharedMemConfig*", "about the cache")                                 \
	PASS_FAMILY("cuCtxWaitEvent*", "orders work")                                              \
	PASS_FAMILY("cuDevResource*", "splits multiprocessors")                                    \
	PASS_FAMILY("cuDevSm*", "splits multiprocessors")                                          \
	PASS_FAMILY("cuDeviceCan*", "only tells")                                                  \
	PASS_FAMILY("cuDeviceComputeCapability*", "only tells")                                    \
	PASS_FAMILY("cuDeviceGet*", "only tells")                                                  \
	PASS_FAMILY("cuDeviceRegister*", "messages")                                               \
	PASS_FAMILY("cuDeviceUnregister*", "messages")                                             \
	PASS_FAMILY("cuDriverGetVersion*", "only tells")                                           \
	PASS_FAMILY("cuEventElapsedTime*", "only tells")                                           \
	PASS_FAMILY("cuEventQuery*", "only tells")                                                 \
	PASS_FAMILY("cuEventRecord*", "orders work")                                               \
	PASS_FAMILY("cuFlush*", "orders work")                                                     \
	PASS_FAMILY("cuFunc*", "about code that is loaded")                                        \
	PASS_FAMILY("cuGetError*", "texts")                                                        \
	PASS_FAMILY("cuGraphBatchMemOpNode*", "about a node")                                      \
	PASS_FAMILY("cuGraphChildGraphNode*", "about a node")                                      \
	PASS_FAMILY("cuGraphClone*", "a graph takes nothing until it is launched")                 \
	PASS_FAMILY("cuGraphConditional*", "a graph takes nothing until it is launched")           \
	PASS_FAMILY("cuGraphCreate*", "a graph takes nothing until it is launched")                \
	PASS_FAMILY("cuGraphDebug*", "texts")                                                      \
	PASS_FAMILY("cuGraphDestroy*", "a graph takes nothing until it is launched")               \
	PASS_FAMILY("cuGraphEvent*", "about a node")                                               \
	PASS_FAMILY("cuGraphExternal*", "about a node")                                            \
	PASS_FAMILY("cuGraphGet*", "only tells")                                                   \
	PASS_FAMILY("cuGraphHostNode*", "about a node")                                            \
	PASS_FAMILY("cuGraphKernelNode*", "about a node")                                          \
	PASS_FAMILY("cuGraphNode*", "about a node")                                                \
	PASS_FAMILY("cuGraphReleaseUserObject*", "counts references")                              \
	PASS_FAMILY("cuGraphRemove*", "about a graph")                                             \
	PASS_FAMILY("cuGraphRetainUserObject*", "counts references")                               \
	PASS_FAMILY("cuGreenCtxGet*", "only tells")                                                \
	PASS_FAMILY("cuGreenCtxRecordEvent*", "orders work")                                       \
	PASS_FAMILY("cuGreenCtxWaitEvent*", "orders work")                                         \
	PASS_FAMILY("cuKernel*", "about code that is loaded")                                      \
	PASS_FAMILY("cuLaunchHostFunc*", "orders work")                                            \
	PASS_FAMILY("cuLibraryEnumerate*", "about code that is loaded")                            \
	PASS_FAMILY("cuLibraryGet*", "about code that is loaded")                                  \
	PASS_FAMILY("cuLogs*", "messages")                                                         \
	PASS_FAMILY("cuMemcpy*", "copies")                                                         \
	PASS_FAMILY("cuMemset*", "fills")                                                          \
	PASS_FAMILY("cuModuleEnumerate*", "about code that is loaded")                             \
	PASS_FAMILY("cuModuleGet*", "about code that is loaded")                                   \
	PASS_FAMILY("cuOccupancy*", "only tells")                                                  \
	PASS_FAMILY("cuParam*", "arguments of a launch")                                           \
	PASS_FAMILY("cuPointer*", "about a pointer")                                               \
	PASS_FAMILY("cuProfiler*", "profiles")                                                     \
	PASS_FAMILY("cuSignalExternalSemaphores*", "orders work")                                  \
	PASS_FAMILY("cuStreamAddCallback*", "orders work")                                         \
	PASS_FAMILY("cuStreamBatchMemOp*", "orders work")                                          \
	PASS_FAMILY("cuStreamBeginCapture*", "records work")                                       \
	PASS_FAMILY("cuStreamCopyAttributes*", "about a stream")                                   \
	PASS_FAMILY("cuStreamEndCapture*", "records work")                                         \
	PASS_FAMILY("cuStreamGet*", "only tells")                                                  \
	PASS_FAMILY("cuStreamIs*", "only tells")                                                   \
	PASS_FAMILY("cuStreamQuery*", "only tells")                                                \
	PASS_FAMILY("cuStreamSetAttribute*", "about a stream")                                     \
	PASS_FAMILY("cuStreamUpdateCapture*", "records work")                                      \
	PASS_FAMILY("cuStreamWait*", "orders work")                                                \
	PASS_FAMILY("cuStreamWrite*", "orders work")                                               \
	PASS_FAMILY("cuSurf*", "a view of memory")                                                 \
	PASS_FAMILY("cuTensorMap*", "a view of memory, kept by the program")                       \
	PASS_FAMILY("cuTexObject*", "a view of memory")                                            \
	PASS_FAMILY("cuTexRef*", "a view of memory")                                               \
	PASS_FAMILY("cuThreadExchange*", "records work")                                           \
	PASS_FAMILY("cuUserObject*", "counts references")                                          \
	PASS_FAMILY("cuWaitExternalSemaphores*", "orders work")                                    \
	PASS_FAMILY("cudbg*", "what a debugger calls")

#endif
