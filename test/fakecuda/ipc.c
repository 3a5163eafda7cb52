/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The legacy export of memory to other processes: a handle is 64 bytes that name the allocation,
 * and may be sent in any way.
 */
#include "alloc.h"
#include "hold.h"
#include "view.h"

#include <string.h>

#define IPC_MAGIC 0x4350494d4558ull
#define LAZY_ENABLE_PEER_ACCESS 1u

struct ipc_handle {
	uint64_t magic;
	struct exported memory;
};

CUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer)
{
	struct ipc_handle handle = {.magic = IPC_MAGIC};
	struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	/* Any address in the allocation is accepted. */
	range = ranges_at(&allocations, pointer);
	if (!out || !range || range->kind != RANGE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	handle.memory = (struct exported){
	    .object = allocation_share(range), .address = range->start, .size = range->size};
	if (!handle.memory.object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, CUipcMemHandle bytes, unsigned int flags, bool again)
{
	struct ipc_handle handle;
	struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	if (!out || flags != LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&handle, &bytes, sizeof(handle));
	if (handle.magic != IPC_MAGIC || !object_has_origin(handle.memory.object))
		return CUDA_ERROR_INVALID_HANDLE;
	if (object_is_own(handle.memory.object))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!again && view_is_open(&handle.memory, RANGE_OPENED))
		return CUDA_ERROR_ALREADY_MAPPED;
	TRY(view_open(context, &handle.memory, OBJECT_LINEAR, RANGE_OPENED, &range));
	*out = range->start;
	return CUDA_SUCCESS;
}

/* Before CUDA 11 a handle could be opened once. */
CUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle bytes, unsigned int flags)
{
	return open_handle(out, bytes, flags, false);
}

CUDA_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle bytes, unsigned int flags)
{
	return open_handle(out, bytes, flags, true);
}

CUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	struct range *range;

	DRIVER_ENTER_CONTEXT(context);
	range = ranges_at(&allocations, pointer);
	if (!range || range->kind != RANGE_OPENED || range->start != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	view_close(range);
	return CUDA_SUCCESS;
}

/* For other devices: these cards do not support dma-buf. */
CUDA_API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr start, size_t size, int type,
                                                unsigned long long flags)
{
	(void)flags;
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !start || !size || type != 1)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_NOT_SUPPORTED;
}
