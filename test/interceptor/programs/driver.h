/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions that programs here call: those of the interceptor's table, and more that
 * several of them call. */
#ifndef DRIVER_H
#define DRIVER_H

#include "table.h"

CUresult cuCheckpointProcessCheckpoint(int pid, void *arguments);
CUresult cuCheckpointProcessLock(int pid, void *arguments);
CUresult cuCheckpointProcessRestore(int pid, void *arguments);
CUresult cuCheckpointProcessUnlock(int pid, void *arguments);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                               size_t count, CUdeviceptr pointer);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuInit(unsigned int flags);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlInit_v2(void);

#endif
