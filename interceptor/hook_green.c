/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: parts of a device's multiprocessors, each of which keeps the primary context
 * active. A green context itself (4 to 6 MiB) is overhead. Memory that is allocated while it is
 * current stays when it is destroyed, until the primary context ends (driver observation, H100,
 * 580.159.04), so the primary context is the owner.
 *
 * A green context is noted under its handle, and under that of the context made from it, both with
 * their primary context.
 */
#include "leaving.h"
#include "table.h"

CUresult cuGreenCtxCreate(CUgreenCtx *green, void *description, CUdevice device, unsigned int flags)
{
	CUcontext primary = NULL, context = NULL;
	CUresult result;

	if (!green)
		return DRIVER(cuGreenCtxCreate)(green, description, device, flags);
	/* The call that activates the primary context charges it: make that call here. */
	result = cuDevicePrimaryCtxRetain(&primary, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = DRIVER(cuGreenCtxCreate)(green, description, device, flags);
	if (result == CUDA_SUCCESS) {
		context_note(map_key_of(*green),
		             &(struct context){.ordinal = device, .primary = map_key_of(primary)});
		/* Launches in its streams run in this context, even if the program never gets
		 * it. */
		if (DRIVER_HAS(cuCtxFromGreenCtx))
			(void)cuCtxFromGreenCtx(&context, *green);
	}
	(void)cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	struct context known, made;
	CUcontext context = NULL;
	struct primary *primary;
	CUresult result;

	if (!context_take(map_key_of(green), &known))
		return DRIVER(cuGreenCtxDestroy)(green);
	if (DRIVER_HAS(cuCtxFromGreenCtx) &&
	    DRIVER(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS)
		(void)context_take(map_key_of(context), &made);
	primary = leaving_primary(known.ordinal);
	result = left_primary(primary, known.ordinal, DRIVER(cuGreenCtxDestroy)(green));
	if (result != CUDA_SUCCESS) {
		context_note(map_key_of(green), &known);
		if (context)
			context_note(map_key_of(context), &known);
	}
	return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
	CUresult result = DRIVER(cuCtxFromGreenCtx)(context, green);
	struct context known;

	if (result == CUDA_SUCCESS && context_get(map_key_of(green), &known))
		context_note(map_key_of(*context), &known);
	return result;
}
