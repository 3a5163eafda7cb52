/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory shared between processes. Its maker is charged, even after it has freed it while others
 * keep it (handover.h); other processes of the slice are not. Memory from outside the slice is
 * charged at its size while open.
 *
 * If its maker dies, a process that has it open is charged.
 */
#include "block.h"
#include "context.h"
#include "grant.h"
#include "handover.h"
#include "hold.h"
#include "import.h"
#include "lender.h"
#include "movable.h"
#include "object.h"
#include "piece.h"
#include "pool.h"
#include "table.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	CUresult result;

	if (piece_has(pointer, "cuIpcGetMemHandle"))
		return CUDA_ERROR_NOT_SUPPORTED;
	result = DRIVER(cuIpcGetMemHandle)(handle, pointer);
	if (result == CUDA_SUCCESS)
		handover_lent(handle, &(struct lent){.address = pointer});
	return result;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t bytes, int type,
                                       unsigned long long flags)
{
	if (piece_has(pointer, "cuMemGetHandleForAddressRange"))
		return CUDA_ERROR_NOT_SUPPORTED;
	movable_stay_at(pointer, bytes, "cuMemGetHandleForAddressRange");
	return DRIVER(cuMemGetHandleForAddressRange)(handle, pointer, bytes, type, flags);
}

static uint64_t size_at(CUdeviceptr pointer)
{
	CUdeviceptr start = 0;
	size_t bytes = 0;

	if (DRIVER_HAS(cuMemGetAddressRange_v2))
		(void)DRIVER(cuMemGetAddressRange_v2)(&start, &bytes, pointer);
	return bytes;
}

/* The lender may be known before it is opened, the size only afterwards. */
static CUresult open_handle(CUresult (*call)(CUdeviceptr *pointer, CUipcMemHandle handle,
                                             unsigned int flags),
                            CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	struct import *import =
	    import_begin(lender_of_name(&handle), process_current_ordinal(), -1, &handle);
	CUresult result;

	if (!import)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = call(pointer, handle, flags);
	/* Already open: the driver counts the opens, and so does this. */
	if (result != CUDA_SUCCESS || hold_open(*pointer)) {
		import_end(import);
		return result;
	}
	if (import_reaches(import, block_round(size_at(*pointer)), LEDGER_CALL_IPC, NULL)) {
		/* Another thread may have opened it since. */
		if (!hold_add(*pointer, &(struct holding){.import = import,
		                                          .opens = 1,
		                                          .owner = context_current(),
		                                          .ordinal = process_current_ordinal()}))
			import_end(import);
		return CUDA_SUCCESS;
	}
	if (DRIVER_HAS(cuIpcCloseMemHandle))
		(void)DRIVER(cuIpcCloseMemHandle)(*pointer);
	import_end(import);
	*pointer = 0;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define OPENS(name)                                                                                \
	CUresult name(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)             \
	{                                                                                          \
		return open_handle(DRIVER(name), pointer, handle, flags);                          \
	}

OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	struct holding holding;
	bool known = hold_close(pointer, &holding);
	CUresult result = DRIVER(cuIpcCloseMemHandle)(pointer);

	if (!known)
		return result;
	if (result == CUDA_SUCCESS) {
		if (holding.opens == 1)
			import_end(holding.import);
	} else if (!hold_open(pointer)) {
		holding.opens = 1;
		hold(pointer, &holding);
	}
	return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      int type, unsigned long long flags)
{
	CUresult result = DRIVER(cuMemExportToShareableHandle)(
	    shareable, movable_stay(handle, "cuMemExportToShareableHandle"), type, flags);

	if (result != CUDA_SUCCESS)
		return result;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		handover_name(handle, shareable);
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		handover_file(handle, *(const int *)shareable);
	return result;
}

static CUdevice ordinal_of(CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp properties;

	if (!DRIVER_HAS(cuMemGetAllocationPropertiesFromHandle) ||
	    DRIVER(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS ||
	    properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return -1;
	return properties.location.id;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        int type)
{
	bool is_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	int descriptor = is_file ? (int)(intptr_t)shareable : -1;
	const void *name = type == CU_MEM_HANDLE_TYPE_FABRIC ? shareable : NULL;
	uint64_t lender = 0;
	struct import *import;
	CUdevice ordinal;
	CUresult result;

	if (is_file)
		lender = lender_of_file(descriptor);
	else if (name)
		lender = lender_of_name(name);
	import = import_begin(lender, -1, descriptor, name);
	if (!import)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemImportFromShareableHandle)(handle, shareable, type);
	if (result == CUDA_SUCCESS) {
		ordinal = ordinal_of(*handle);
		import_is_on(import, ordinal);
		object_imported(*handle, ordinal, import);
	} else {
		import_end(import);
	}
	return result;
}

/* Nothing can be allocated from an import (driver observation), and the exporter is charged. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                            unsigned long long flags)
{
	CUresult result = DRIVER(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);

	if (result == CUDA_SUCCESS)
		pool_note(*pool, POOL_ELSEWHERE, false);
	return result;
}

/* Returns the pool's steps under an allocation, if it begins with one. */
static uint64_t steps_at(CUdeviceptr pointer)
{
	return (size_at(pointer) + POOL_STEP - 1) & ~(POOL_STEP - 1);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr pointer)
{
	CUresult result = DRIVER(cuMemPoolExportPointer)(data, pointer);

	if (result == CUDA_SUCCESS)
		handover_lent(data, &(struct lent){.address = pointer,
		                                   .ordinal = process_current_ordinal(),
		                                   .of_pool = steps_at(pointer) + POOL_STEP});
	return result;
}

/* The memory stays until the imported pool is destroyed (driver observation). */
CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                CUmemPoolPtrExportData *data)
{
	uint64_t lender = data ? lender_of_name(data) : 0, source = (uint64_t)(uintptr_t)pool;
	uint64_t key = lender ? lender_name(data) ^ source : 0;
	struct holding known;
	struct import *import;
	CUresult result;

	if (!lender)
		return DRIVER(cuMemPoolImportPointer)(pointer, pool, data);
	import = import_begin(lender, process_current_ordinal(), -1, data);
	if (!import)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemPoolImportPointer)(pointer, pool, data);
	if (result != CUDA_SUCCESS || hold_get(key, &known)) {
		import_end(import);
		return result;
	}
	(void)import_reaches(import, steps_at(*pointer), LEDGER_CALL_IPC, NULL);
	if (!hold_add(key, &(struct holding){
	                       .import = import, .source = source, .ordinal = import->ordinal}))
		import_end(import);
	return result;
}

static struct import *begin_external(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description,
                                     CUdevice ordinal)
{
	int descriptor = description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
	                     ? description->handle.fd
	                     : -1;

	/* Before the call, since the driver takes over the descriptor. */
	return import_begin(lender_of_file(descriptor), ordinal, descriptor, NULL);
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUdevice ordinal = process_current_ordinal();
	struct import *import;
	CUresult result;

	if (!memory || !description || ordinal < 0)
		return DRIVER(cuImportExternalMemory)(memory, description);
	import = begin_external(description, ordinal);
	if (!import ||
	    !import_reaches(import, block_round(description->size), LEDGER_CALL_EXTERNAL, NULL)) {
		import_end(import);
		return grant_error();
	}
	result = DRIVER(cuImportExternalMemory)(memory, description);
	if (result == CUDA_SUCCESS)
		hold((uint64_t)(uintptr_t)*memory, &(struct holding){.import = import,
		                                                     .owner = context_current(),
		                                                     .ordinal = ordinal});
	else
		import_end(import);
	return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint64_t key = (uint64_t)(uintptr_t)memory;
	struct holding import;

	if (!unhold(key, &import))
		return DRIVER(cuDestroyExternalMemory)(memory);
	return release_or_hold(DRIVER(cuDestroyExternalMemory)(memory), key, &import);
}

/* A mapped part keeps all of the memory, even without its handle. */
static CUresult mapped(CUresult result, CUexternalMemory memory, uint64_t key)
{
	struct import *import =
	    result == CUDA_SUCCESS ? hold_import((uint64_t)(uintptr_t)memory) : NULL;

	if (import)
		hold(key, &(struct holding){.import = import,
		                            .owner = context_current(),
		                            .ordinal = import->ordinal});
	return result;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
	CUresult result = DRIVER(cuExternalMemoryGetMappedBuffer)(pointer, memory, description);

	return mapped(result, memory, result == CUDA_SUCCESS ? *pointer : 0);
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                 const void *description)
{
	CUresult result =
	    DRIVER(cuExternalMemoryGetMappedMipmappedArray)(array, memory, description);

	return mapped(result, memory, result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0);
}
