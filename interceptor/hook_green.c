/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: parts of a device's multiprocessors, on top of its primary context, which each of
 * them keeps active. What a green context itself takes (4 to 6 MiB) is overhead. Memory that was
 * allocated while one was current stays when it is destroyed, until the primary context goes
 * (driver observation, H100, 580.159.04): so it belongs to that.
 *
 * In process.contexts a green context has an entry under its handle, and one under the handle of
 * the context made from it; `owner` of both is the primary context.
 */
#include "context.h"
#include "hook.h"

static uint64_t key_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, void *description, CUdevice device, unsigned int flags)
{
	struct process *process;
	struct map_value value = {.ordinal = device};
	CUcontext primary = NULL;
	CUresult result;

	/* What makes the primary context active charges it: have that be our own call. */
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = DRIVER(cuGreenCtxCreate)(green, description, device, flags);
	process = process_get();
	if (result == CUDA_SUCCESS && process) {
		value.owner = key_of(primary);
		(void)map_put(&process->contexts, key_of(*green), value);
	}
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	struct process *process = process_get();
	struct map_value value, same;
	CUcontext context = NULL;
	CUresult result;
	bool known;

	known = process && map_take(&process->contexts, key_of(green), &value);
	if (known && DRIVER_HAS(cuCtxFromGreenCtx) &&
	    DRIVER(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS)
		(void)map_take(&process->contexts, key_of(context), &same);
	result = DRIVER(cuGreenCtxDestroy)(green);
	if (!known)
		return result;
	if (result == CUDA_SUCCESS)
		return primary_left(result, value.ordinal);
	(void)map_put(&process->contexts, key_of(green), value);
	if (context)
		(void)map_put(&process->contexts, key_of(context), value);
	return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	struct process *process = process_get();
	struct map_value value;
	CUresult result;

	result = DRIVER(cuCtxFromGreenCtx)(context, green);
	if (result == CUDA_SUCCESS && process &&
	    map_get(&process->contexts, key_of(green), &value)) {
		(void)map_put(&process->contexts, key_of(*context), value);
		__atomic_store_n(&process->green, true, __ATOMIC_RELAXED);
	}
	return result;
}
