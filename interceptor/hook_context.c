/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts. A process's context holds hundreds of megabytes before it allocates anything (518 MiB
 * on an H100, driver 580.159.04, and as much again for a second one). What it will hold is charged
 * before it is made, as the enforcer learned it from the last one on such a device; what it does
 * hold is settled afterwards from driver truth. If it turns out not to fit, it is destroyed again.
 */
#include "context.h"
#include "hook.h"
#include "pool.h"

/* What a context on this device is expected to take. */
static uint64_t expected(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	return device < 0 ? 0
	                  : __atomic_load_n(&process->ledger->device[device].context_bytes,
	                                    __ATOMIC_RELAXED);
}

/* What the driver holds for this process beyond what the ledger says that it asked for. False if
 * unknown, or if another thread charged or gave back meanwhile. */
static bool beyond_ledger(CUdevice ordinal, uint64_t *bytes)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;
	uint64_t number, held, contexts, truth;

	if (device < 0)
		return false;
	lock_take(&process->account_lock);
	number = process->account[device].slice.number;
	held = process->account[device].slice.held;
	contexts = process->context_bytes[device];
	lock_give(&process->account_lock);
	if (!process_truth(ordinal, &truth))
		return false;
	if (__atomic_load_n(&process->account[device].slice.number, __ATOMIC_RELAXED) != number)
		return false;
	*bytes = truth > held - contexts ? truth - (held - contexts) : 0;
	return true;
}

/*
 * After a context was made for which `charged` was charged: make the charge what it takes, and
 * remember it. False if that does not fit.
 */
static bool settle(CUdevice ordinal, uint64_t owner, uint64_t charged)
{
	struct process *process = process_get();
	struct map_value value = {.ordinal = ordinal};
	uint64_t all, other, real = charged;

	if (beyond_ledger(ordinal, &all)) {
		int device = process_device(process, ordinal);

		other = process->context_bytes[device] - charged;
		real = all > other ? all - other : 0;
	}
	if (real > charged) {
		if (process_charge_context(ordinal, real - charged) != CHARGE_OK)
			return false;
	} else if (real < charged) {
		process_release_context(ordinal, charged - real);
	}
	value.bytes = real;
	(void)map_put(&process->contexts, owner, value);
	return true;
}

/* All that belonged to a context is gone with it. */
static void context_gone(uint64_t owner)
{
	struct process *process = process_get();
	struct map_value value;

	if (!process)
		return;
	owner_gone(owner);
	if (map_take(&process->contexts, owner, &value)) {
		pool_settle_all(process, value.ordinal);
		process_release_context(value.ordinal, value.bytes);
	}
}

static CUresult destroy_again(CUcontext *context)
{
	if (DRIVER_HAS(cuCtxDestroy_v2))
		(void)DRIVER(cuCtxDestroy_v2)(*context);
	*context = NULL;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What follows the driver's answer, alike for all versions of cuCtxCreate. */
static CUresult created(CUresult result, CUcontext *context, CUdevice device, uint64_t charged)
{
	if (result != CUDA_SUCCESS) {
		process_release_context(device, charged);
		return result;
	}
	if (!settle(device, (uint64_t)(uintptr_t)*context, charged)) {
		process_release_context(device, charged);
		return destroy_again(context);
	}
	return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuCtxCreate)(context, flags, device), context, device, charged);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuCtxCreate_v2)(context, flags, device), context, device, charged);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *parameters, int count, unsigned int flags,
                        CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuCtxCreate_v3)(context, parameters, count, flags, device), context,
	               device, charged);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuCtxCreate_v4)(context, parameters, flags, device), context, device,
	               charged);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuGLCtxCreate)(context, flags, device), context, device, charged);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	uint64_t charged;

	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuGLCtxCreate_v2)(context, flags, device), context, device, charged);
}

CUresult cuCtxDestroy(CUcontext context)
{
	CUresult result;

	result = DRIVER(cuCtxDestroy)(context);
	if (result == CUDA_SUCCESS)
		context_gone((uint64_t)(uintptr_t)context);
	return result;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult result;

	result = DRIVER(cuCtxDestroy_v2)(context);
	if (result == CUDA_SUCCESS)
		context_gone((uint64_t)(uintptr_t)context);
	return result;
}

/* Destroys it if this was the last use; nobody can ask whether it was. A context of
 * cuCtxCreate has one use unless cuCtxAttach (deprecated since CUDA 4) made more. */
CUresult cuCtxDetach(CUcontext context)
{
	CUresult result;

	result = DRIVER(cuCtxDetach)(context);
	if (result == CUDA_SUCCESS)
		context_gone((uint64_t)(uintptr_t)context);
	return result;
}

static bool primary_active(CUdevice device)
{
	unsigned int flags;
	int active = 0;

	return DRIVER_HAS(cuDevicePrimaryCtxGetState) &&
	       DRIVER(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS &&
	       active;
}

/* Whose are the bytes of a device's primary context: its handle is only known once it is
 * retained, so its charge is kept under the device. */
static uint64_t primary_key(CUdevice device)
{
	return UINT64_MAX - (uint64_t)device;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct process *process;
	struct map_value value;
	uint64_t charged;
	CUresult result;

	if (primary_active(device))
		return DRIVER(cuDevicePrimaryCtxRetain)(context, device);
	charged = expected(device);
	if (process_charge_context(device, charged) != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuDevicePrimaryCtxRetain)(context, device);
	process = process_get();
	/* Two threads may both have found it inactive; one of them made it. */
	if (result == CUDA_SUCCESS && map_get(&process->contexts, primary_key(device), &value)) {
		process_release_context(device, charged);
		return result;
	}
	if (result != CUDA_SUCCESS) {
		process_release_context(device, charged);
		return result;
	}
	if (!settle(device, primary_key(device), charged)) {
		process_release_context(device, charged);
		if (DRIVER_HAS(cuDevicePrimaryCtxRelease_v2))
			(void)DRIVER(cuDevicePrimaryCtxRelease_v2)(device);
		*context = NULL;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (map_get(&process->contexts, primary_key(device), &value)) {
		value.owner = (uint64_t)(uintptr_t)*context;
		(void)map_put(&process->contexts, primary_key(device), value);
	}
	return result;
}

CUresult primary_left(CUresult result, CUdevice device)
{
	struct process *process = process_get();
	struct map_value value;

	if (result == CUDA_SUCCESS && process && !primary_active(device) &&
	    map_get(&process->contexts, primary_key(device), &value)) {
		owner_gone(value.owner);
		context_gone(primary_key(device));
	}
	return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return primary_left(DRIVER(cuDevicePrimaryCtxRelease)(device), device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return primary_left(DRIVER(cuDevicePrimaryCtxRelease_v2)(device), device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return primary_left(DRIVER(cuDevicePrimaryCtxReset)(device), device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return primary_left(DRIVER(cuDevicePrimaryCtxReset_v2)(device), device);
}
