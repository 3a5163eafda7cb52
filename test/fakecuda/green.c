/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: parts of the card's multiprocessors, in the card's primary context. Their objects
 * stay until that ends.
 */
#include "driver.h"
#include "stream.h"

#include <stdlib.h>

#define GREEN_FIRST 6291456u /* bytes of the first one in a primary context */
#define GREEN_NEXT 4194304u

#define GROUP_STEP 8u /* multiprocessors, on compute capability 9.0 */

struct CUdevResourceDesc_st {
	unsigned processors;
};

struct CUgreenCtx_st {
	struct CUctx_st context;
	CUgreenCtx next; /* all green contexts of the process */
	bool destroyed;  /* by the program */
};

static CUgreenCtx all;

void greens_end(const struct device *device)
{
	for (CUgreenCtx green = all; green; green = green->next)
		if (green->context.device == device)
			green->context.alive = false;
}

static void set_processors(CUdevResource *resource, unsigned count)
{
	*resource = (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_SM, .as.sm.smCount = count};
}

CUDA_API CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *out, int type)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	set_processors(out, CARD_PROCESSORS);
	return CUDA_SUCCESS;
}

/* Without space for the groups, *count becomes their possible number. */
CUDA_API CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count,
                                              const CUdevResource *whole, CUdevResource *rest,
                                              unsigned int flags, unsigned int least)
{
	unsigned size, most;

	(void)flags;
	DRIVER_ENTER();
	if (!count || !whole || whole->type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	size = (unsigned)round_up(least ? least : 1, GROUP_STEP);
	most = whole->as.sm.smCount / size;
	if (!most)
		return CUDA_ERROR_INVALID_VALUE;
	if (!groups || *count > most)
		*count = most;
	for (unsigned i = 0; groups && i < *count; i++)
		set_processors(&groups[i], size);
	if (rest)
		set_processors(rest, whole->as.sm.smCount - *count * size);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                            unsigned int count)
{
	CUdevResourceDesc description;

	DRIVER_ENTER();
	if (!out || !resources || !count)
		return CUDA_ERROR_INVALID_VALUE;
	/* Never freed: there is no call for that. */
	description = calloc(1, sizeof(*description));
	if (!description)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned i = 0; i < count; i++)
		description->processors += resources[i].as.sm.smCount;
	*out = description;
	return CUDA_SUCCESS;
}

static CUresult create(struct device *device, CUgreenCtx *out)
{
	CUcontext primary = &device->primary;
	CUgreenCtx green = calloc(1, sizeof(*green));
	CUresult result;
	uint64_t bytes;

	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = primary_retain(device);
	if (result != CUDA_SUCCESS)
		goto no_primary;
	bytes = primary->greens ? GREEN_NEXT : GREEN_FIRST;
	if (!device_charge(device, bytes)) {
		result = CUDA_ERROR_OUT_OF_MEMORY;
		goto no_memory;
	}
	primary->listed += bytes;
	primary->greens++;
	green->context = (struct CUctx_st){.device = device, .parent = primary, .alive = true};
	green->next = all;
	all = green;
	*out = green;
	return CUDA_SUCCESS;
no_memory:
	primary_release(device);
no_primary:
	free(green);
	return result;
}

CUDA_API CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice ordinal,
                                   unsigned int flags)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out || !description || !description->processors ||
	    flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	return create(device, out);
}

/* Leaves the lock held only on success. */
static CUresult enter_green(CUgreenCtx green)
{
	TRY(driver_enter());
	if (!green)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return green->destroyed ? driver_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED) : CUDA_SUCCESS;
}

/* The structure stays, as any context's: it may be current somewhere. */
CUDA_API CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	DRIVER_ENTER_BY(enter_green(green));
	green->destroyed = true;
	green->context.alive = false;
	if (green->context.device->primary.retained)
		primary_release(green->context.device);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	DRIVER_ENTER_BY(enter_green(green));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &green->context;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags,
                                         int priority)
{
	(void)priority;
	DRIVER_ENTER_BY(enter_green(green));
	if (!out || flags != CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_create(&green->context, out);
}
