/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share. Who made it is charged for it; a process of the same slice that
 * opens it is not. From outside the slice it is charged at its size, as long as it is open.
 *
 * Whose it is is told by what crosses over. A legacy IPC handle and a fabric handle are 64 bytes
 * that name the memory: the lender notes a hash of them in the ledger. A descriptor is an open file
 * of the driver's: the lender makes itself the file's owner (fcntl(2), F_SETOWN; it means nothing
 * without O_ASYNC), which travels with the file, and the borrower sees whether that is a process
 * of its slice. A dead one owns nothing.
 *
 * When the lender frees the memory or dies while it is open elsewhere, it stays, and driver truth
 * counts it with the borrower from then on (driver observation, H100, 580.159.04).
 */
#include "block.h"
#include "context.h"
#include "grant.h"
#include "hold.h"
#include "movable.h"
#include "object.h"
#include "piece.h"
#include "pool.h"
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t name_of(const void *handle)
{
	const unsigned char *bytes = handle;
	uint64_t hash = 0xcbf29ce484222325ull;

	for (unsigned i = 0; i < 64; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	return hash ? hash : 1;
}

static void lend(const void *handle)
{
	struct process *process = process_attached();

	if (process)
		ledger_lend(process->ledger, name_of(handle));
}

static bool lent(const void *handle)
{
	struct process *process = process_attached();

	return process && ledger_lent(process->ledger, name_of(handle));
}

static void own(int descriptor)
{
	int saved = errno;

	(void)fcntl(descriptor, F_SETOWN, (int)syscall(SYS_getpid));
	errno = saved;
}

/* The pid of the process that exported what the descriptor is, as this process sees it; 0 if there
 * is none. */
static uint32_t owner_of(int descriptor)
{
	struct f_owner_ex owner = {0};
	int saved = errno, result = fcntl(descriptor, F_GETOWN_EX, &owner);

	errno = saved;
	return result == 0 && owner.type == F_OWNER_PID && owner.pid > 0 ? (uint32_t)owner.pid : 0;
}

/* Whether a process of that pid, as this process sees it, is of the slice. */
static bool of_slice(uint32_t pid)
{
	struct process *process = process_attached();
	const struct ledger_lane *me, *lane;
	uint32_t high;

	if (!process || !pid)
		return false;
	me = &process->ledger->lane[process->lane];
	high = __atomic_load_n(&process->ledger->high_lane, __ATOMIC_ACQUIRE);
	for (uint32_t i = 1; i <= high && i < LEDGER_LANES; i++) {
		lane = &process->ledger->lane[i];
		if (__atomic_load_n(&lane->state, __ATOMIC_ACQUIRE) == LEDGER_LIVE &&
		    lane->pid_ns == me->pid_ns && lane->ns_pid == pid)
			return true;
	}
	return false;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	CUresult result;

	if (piece_has(pointer, "cuIpcGetMemHandle"))
		return CUDA_ERROR_NOT_SUPPORTED;
	result = DRIVER(cuIpcGetMemHandle)(handle, pointer);
	if (result == CUDA_SUCCESS)
		lend(handle);
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

/* How large it is can be asked only once it is open. */
static CUresult opened(CUdeviceptr *pointer, const CUipcMemHandle *handle)
{
	struct holding import = {.opens = 1};
	CUdeviceptr base = 0;
	size_t bytes = 0;

	/* Open already: the driver counts, and so do we. */
	if (lent(handle) || hold_open(*pointer))
		return CUDA_SUCCESS;
	if (DRIVER_HAS(cuMemGetAddressRange_v2))
		(void)DRIVER(cuMemGetAddressRange_v2)(&base, &bytes, *pointer);
	import.bytes = block_round(bytes);
	import.owner = context_current();
	import.ordinal = process_current_ordinal();
	if (grant(import.ordinal, import.bytes, KIND_MEMORY, ATTACH_CALL_IPC) == GRANTED) {
		hold(*pointer, &import);
		return CUDA_SUCCESS;
	}
	if (DRIVER_HAS(cuIpcCloseMemHandle))
		(void)DRIVER(cuIpcCloseMemHandle)(*pointer);
	*pointer = 0;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result;

	result = DRIVER(cuIpcOpenMemHandle)(pointer, handle, flags);
	return result == CUDA_SUCCESS ? opened(pointer, &handle) : result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
	CUresult result;

	result = DRIVER(cuIpcOpenMemHandle_v2)(pointer, handle, flags);
	return result == CUDA_SUCCESS ? opened(pointer, &handle) : result;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	struct holding import;
	bool known = hold_close(pointer, &import);
	CUresult result = DRIVER(cuIpcCloseMemHandle)(pointer);

	if (!known)
		return result;
	if (result != CUDA_SUCCESS) {
		import.opens = 1;
		if (!hold_open(pointer))
			hold(pointer, &import);
	} else if (import.opens == 1) {
		process_release(import.ordinal, import.bytes, import.kind);
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
		lend(shareable);
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		own(*(const int *)shareable);
		object_exported(handle, *(const int *)shareable);
	}
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
	int descriptor = (int)(intptr_t)shareable;
	bool within = false, own_export;
	uint32_t owner = 0;
	CUresult result;

	if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable)
		within = lent(shareable);
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		owner = owner_of(descriptor);
		within = of_slice(owner);
	}
	result = DRIVER(cuMemImportFromShareableHandle)(handle, shareable, type);
	if (result != CUDA_SUCCESS)
		return result;
	/* One's own export is one more reference to it; if it was released meanwhile, only the
	 * descriptor kept it, and nobody is charged for it any more. */
	own_export = owner && owner == (uint32_t)syscall(SYS_getpid);
	if (own_export && object_reimported(*handle, descriptor))
		return result;
	if ((own_export || !within) && ordinal_of(*handle) >= 0)
		object_borrowed(*handle, ordinal_of(*handle));
	return result;
}

/* Nothing can be allocated from an import (driver observation), and the exporter pays. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                            unsigned long long flags)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
	if (result == CUDA_SUCCESS)
		pool_note(process, *pool, POOL_ELSEWHERE, false);
	return result;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUdevice ordinal = process_current_ordinal();
	uint64_t bytes;
	CUresult result;

	/* The driver takes the descriptor over, so it is looked at before. */
	if (!memory || !description || ordinal < 0 ||
	    (description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
	     of_slice(owner_of(description->handle.fd))))
		return DRIVER(cuImportExternalMemory)(memory, description);
	bytes = block_round(description->size);
	if (grant(ordinal, bytes, KIND_MEMORY, ATTACH_CALL_EXTERNAL) != GRANTED)
		return grant_error();
	result = DRIVER(cuImportExternalMemory)(memory, description);
	return hold_or_release(result, result ? 0 : (uint64_t)(uintptr_t)*memory, ordinal, bytes,
	                       KIND_MEMORY);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint64_t key = (uint64_t)(uintptr_t)memory;
	struct holding import;

	if (!unhold(key, &import))
		return DRIVER(cuDestroyExternalMemory)(memory);
	return release_or_hold(DRIVER(cuDestroyExternalMemory)(memory), key, &import);
}
