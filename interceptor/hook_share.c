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
#include "hook.h"
#include "object.h"
#include "pool.h"

#include "block.h"

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

	result = DRIVER(cuIpcGetMemHandle)(handle, pointer);
	if (result == CUDA_SUCCESS)
		lend(handle);
	return result;
}

/* How large it is can be asked only once it is open. */
static CUresult opened(CUdeviceptr *pointer, const CUipcMemHandle *handle)
{
	struct process *process = process_get();
	struct map_value value = {.uses = 1};
	CUdeviceptr base = 0;
	size_t bytes = 0;

	/* Open already: the driver counts, and so do we. */
	if (lent(handle) || (process && map_use(&process->pointers, *pointer, 1, &value)))
		return CUDA_SUCCESS;
	if (DRIVER_HAS(cuMemGetAddressRange_v2))
		(void)DRIVER(cuMemGetAddressRange_v2)(&base, &bytes, *pointer);
	value = (struct map_value){.bytes = block_round(bytes),
	                           .owner = current_owner(),
	                           .ordinal = process_current_ordinal(),
	                           .uses = 1};
	if (process_charge(value.ordinal, value.bytes, "cuIpcOpenMemHandle") == CHARGE_OK) {
		(void)map_put(&process->pointers, *pointer, value);
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
	struct process *process = process_get();
	struct map_value value;
	bool full, known;
	CUresult result;

	known = process && map_use(&process->pointers, pointer, -1, &value);
	result = DRIVER(cuIpcCloseMemHandle)(pointer);
	if (!known)
		return result;
	if (result != CUDA_SUCCESS) {
		value.uses = 1;
		(void)map_use_or_put(&process->pointers, pointer, value, &full);
	} else if (value.uses == 0) {
		process_release(value.ordinal, value.bytes);
	}
	return result;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      int type, unsigned long long flags)
{
	struct process *process = process_get();
	struct object *object;
	CUresult result;

	result = DRIVER(cuMemExportToShareableHandle)(shareable, handle, type, flags);
	if (result != CUDA_SUCCESS || !process)
		return result;
	if (type == CU_MEM_HANDLE_TYPE_FABRIC)
		lend(shareable);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return result;
	own(*(const int *)shareable);
	lock_take(&process->vmm_lock);
	object = object_find(process, handle);
	if (object)
		object->exported = *(const int *)shareable;
	lock_give(&process->vmm_lock);
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
	struct process *process = process_get();
	struct object *object = NULL;
	int descriptor = (int)(intptr_t)shareable;
	bool within = false;
	uint32_t owner = 0;
	CUresult result;

	if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable)
		within = lent(shareable);
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		owner = owner_of(descriptor);
		within = of_slice(owner);
	}
	result = DRIVER(cuMemImportFromShareableHandle)(handle, shareable, type);
	if (result != CUDA_SUCCESS || !process)
		return result;
	lock_take(&process->vmm_lock);
	/* One's own export is one more reference to it; if it was released meanwhile, only the
	 * descriptor kept it, and nobody is charged for it any more. */
	if (owner && owner == (uint32_t)syscall(SYS_getpid)) {
		object = object_exported_to(process, descriptor);
		within = object != NULL;
	}
	if (object) {
		object_add_handle(process, object, *handle);
	} else if (!within && ordinal_of(*handle) >= 0) {
		object = object_new(process, *handle, ordinal_of(*handle), 0);
		if (object)
			object->borrowed = true;
	}
	lock_give(&process->vmm_lock);
	return result;
}

/* Nothing can be allocated from an import (driver observation), and the exporter pays. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type,
                                            unsigned long long flags)
{
	struct process *process = process_get();
	CUresult result;

	result = DRIVER(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
	if (result == CUDA_SUCCESS && process)
		(void)pool_add(process, *pool, -1);
	return result;
}

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUdevice ordinal;
	uint64_t bytes;
	CUresult result;

	ordinal = process_current_ordinal();
	/* The driver takes the descriptor over, so it is looked at before. */
	if (!memory || !description || ordinal < 0 ||
	    (description->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
	     of_slice(owner_of(description->handle.fd))))
		return DRIVER(cuImportExternalMemory)(memory, description);
	bytes = block_round(description->size);
	if (process_charge(ordinal, bytes, "cuImportExternalMemory") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuImportExternalMemory)(memory, description);
	return held_or_released(result, result ? 0 : (uint64_t)(uintptr_t)*memory, ordinal, bytes);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	uint64_t key = (uint64_t)(uintptr_t)memory;
	struct map_value value;

	if (!unhold(key, &value))
		return DRIVER(cuDestroyExternalMemory)(memory);
	return released_or_held(DRIVER(cuDestroyExternalMemory)(memory), key, value);
}
