/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: parts of a device's multiprocessors, on top of its primary context, which each of
 * them keeps active. What a green context itself takes (4 to 6 MiB) is overhead. Memory that was
 * allocated while one was current stays when it is destroyed, until the primary context goes
 * (driver observation, H100, 580.159.04): so it belongs to that.
 *
 * A green context is noted under its handle, and under the handle of the context made from it; both
 * with their primary context.
 */
#include "context.h"
#include "state.h"
#include "table.h"

static uint64_t key_of(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, void *description, CUdevice device, unsigned int flags)
{
	CUcontext primary = NULL, context = NULL;
	CUresult result;

	if (!green)
		return DRIVER(cuGreenCtxCreate)(green, description, device, flags);
	/* What makes the primary context active charges it: have that be our own call. */
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = DRIVER(cuGreenCtxCreate)(green, description, device, flags);
	if (result == CUDA_SUCCESS) {
		context_note(key_of(*green),
		             &(struct context){.ordinal = device, .primary = key_of(primary)});
		/* A launch in one of its streams is in that, whether the program asks or not. */
		if (DRIVER_HAS(cuCtxFromGreenCtx))
			(void)cuCtxFromGreenCtx(&context, *green);
	}
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	struct process *process = process_get();
	struct context known, made;
	CUcontext context = NULL;
	struct lock *lock;
	CUresult result;

	if (!context_take(key_of(green), &known))
		return DRIVER(cuGreenCtxDestroy)(green);
	if (DRIVER_HAS(cuCtxFromGreenCtx) &&
	    DRIVER(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS)
		(void)context_take(key_of(context), &made);
	lock = &state_of(process)->contexts.primary_lock[known.ordinal];
	lock_take(lock);
	overhead_change_begin(known.ordinal);
	result = primary_left(DRIVER(cuGreenCtxDestroy)(green), known.ordinal);
	overhead_change_end(known.ordinal);
	lock_give(lock);
	if (!primary_active(known.ordinal))
		overhead_settle_loose(known.ordinal);
	if (result != CUDA_SUCCESS) {
		context_note(key_of(green), &known);
		if (context)
			context_note(key_of(context), &known);
	}
	return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	CUresult result = DRIVER(cuCtxFromGreenCtx)(context, green);
	struct context known;

	if (result == CUDA_SUCCESS && context_get(key_of(green), &known))
		context_note(key_of(*context), &known);
	return result;
}
