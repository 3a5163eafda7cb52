/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: parts of the card's multiprocessors, in the card's primary context. Nothing of
 * theirs goes before that goes.
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
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	set_processors(out, CARD_PROCESSORS);
	return driver_leave(CUDA_SUCCESS);
}

/* Without a place for the groups, *count becomes how many there can be. */
CUDA_API CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *count,
                                              const CUdevResource *whole, CUdevResource *rest,
                                              unsigned int flags, unsigned int least)
{
	CUresult result = driver_enter();
	unsigned size, most;

	(void)flags;
	if (result != CUDA_SUCCESS)
		return result;
	if (!count || !whole || whole->type != CU_DEV_RESOURCE_TYPE_SM)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	size = (unsigned)round_up(least ? least : 1, GROUP_STEP);
	most = whole->as.sm.smCount / size;
	if (!most)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (!groups || *count > most)
		*count = most;
	for (unsigned i = 0; groups && i < *count; i++)
		set_processors(&groups[i], size);
	if (rest)
		set_processors(rest, whole->as.sm.smCount - *count * size);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources,
                                            unsigned int count)
{
	CUresult result = driver_enter();
	CUdevResourceDesc description;

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !resources || !count)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	/* Not freed: there is no call for that. */
	description = calloc(1, sizeof(*description));
	if (!description)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	for (unsigned i = 0; i < count; i++)
		description->processors += resources[i].as.sm.smCount;
	*out = description;
	return driver_leave(CUDA_SUCCESS);
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
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !description || !description->processors ||
	    flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(create(device, out));
}

/* Leaves the lock held only on success. */
static CUresult enter_green(CUgreenCtx green)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!green)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return green->destroyed ? driver_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED) : CUDA_SUCCESS;
}

/* The structure stays, as that of any context: it may be current somewhere. */
CUDA_API CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	CUresult result = enter_green(green);

	if (result != CUDA_SUCCESS)
		return result;
	green->destroyed = true;
	green->context.alive = false;
	if (green->context.device->primary.retained)
		primary_release(green->context.device);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	CUresult result = enter_green(green);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = &green->context;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags,
                                         int priority)
{
	CUresult result = enter_green(green);

	(void)priority;
	if (result != CUDA_SUCCESS)
		return result;
	if (!out || flags != CU_STREAM_NON_BLOCKING)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(stream_create(&green->context, out));
}
