/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: their cost, the current one, and what ends with them. */
#define _GNU_SOURCE
#include "capture.h"
#include "config.h"
#include "driver.h"
#include "graph_memory.h"
#include "limit.h"
#include "pool.h"
#include "stream.h"
#include "vmm.h"
#include "work.h"

#include <stdlib.h>
#include <time.h>

#define STACK_DEPTH 64

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

CUcontext context_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static void set_current(CUcontext context)
{
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
}

void context_own(CUcontext context, struct owned *thing, void (*destroy)(struct owned *))
{
	CUcontext owner = context->parent ? context->parent : context;

	thing->context = context;
	thing->destroy = destroy;
	thing->next = owner->owned;
	thing->link = &owner->owned;
	if (thing->next)
		thing->next->link = &thing->next;
	owner->owned = thing;
}

void context_disown(struct owned *thing)
{
	*thing->link = thing->next;
	if (thing->next)
		thing->next->link = thing->link;
}

/* Nanoseconds. A card takes at least as long. */
#define SLOW_CONTEXT 200000000

static CUresult faulted;

CUresult context_fault(CUresult why)
{
	faulted = why;
	return why;
}

CUresult context_faulted(void)
{
	return faulted;
}

/* Every context has the same cost: a process's second one shares nothing with the first. */
CUresult context_activate(CUcontext context, struct device *device, uint64_t more)
{
	if (faulted != CUDA_SUCCESS)
		return faulted;
	context->listed = config_context_bytes();
	context->unlisted = config_context_unlisted() + more;
	if (!device_charge_with(device, context->listed, context->unlisted))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (config_is("FAKECUDA_SLOW", "contexts"))
		nanosleep(&(struct timespec){.tv_nsec = SLOW_CONTEXT}, NULL);
	context->device = device;
	machine_add_context(device->machine, 1);
	context->alive = true;
	context->wrong = CUDA_SUCCESS;
	context->greens = 0;
	limits_start(context);
	return CUDA_SUCCESS;
}

void context_deactivate(CUcontext context)
{
	struct device *device = context->device;

	work_drop(context);
	while (context->owned) {
		struct owned *thing = context->owned;

		context_disown(thing);
		thing->destroy(thing);
	}
	vmm_work_done();
	context->alive = false;
	machine_add_context(device->machine, -1);
	if (context->primary)
		greens_end(device);
	graph_memory_trim(device);
	/* Pools belong to the card, not to the context: allocations in them stay, even without a
	 * context of the process there. */
	pools_synchronise(device, STREAM_ALL);
	device_release_with(device, context->listed, context->unlisted);
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice ordinal, uint64_t more)
{
	CUcontext context;
	CUresult result;

	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out || depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	context = calloc(1, sizeof(*context));
	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->flags = flags & CU_CTX_FLAGS_MASK;
	result = context_activate(context, device, more);
	if (result != CUDA_SUCCESS) {
		free(context);
		return result;
	}
	stack[depth++] = context;
	*out = context;
	return CUDA_SUCCESS;
}

/* A context of the API of CUDA 3.1 is larger on the card. */
CUDA_API CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, config_old_context_unlisted());
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
	return create(out, flags, device, 0);
}

/* 11.4: with execution affinities, which cost nothing here */
CUDA_API CUresult cuCtxCreate_v3(CUcontext *out, void *affinities, int count, unsigned int flags,
                                 CUdevice device)
{
	(void)affinities;
	if (count < 0)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, flags, device, 0);
}

/* 12.5: with CUctxCreateParams, or NULL */
CUDA_API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned int flags,
                                 CUdevice device)
{
	(void)parameters;
	return create(out, flags, device, 0);
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context)
{
	DRIVER_ENTER();
	if (!context || context->primary || context->parent)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	context_deactivate(context);
	/* The structure stays: the context may be current in other threads, and their calls must
	 * fail because it is destroyed. */
	if (context_current() == context)
		depth--;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDestroy(CUcontext context)
{
	return cuCtxDestroy_v2(context);
}

/* For a current context. Each has one use, since nothing here adds another. */
CUDA_API CUresult cuCtxDetach(CUcontext context)
{
	TRY(driver_enter());
	if (!context || context != context_current())
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	driver_leave(CUDA_SUCCESS);
	return cuCtxDestroy_v2(context);
}

/* There is no OpenGL context to which it could belong. */
CUDA_API CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal)
{
	(void)flags;
	DRIVER_ENTER_DEVICE(device, ordinal);
	return out ? CUDA_ERROR_INVALID_GRAPHICS_CONTEXT : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGLCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
	return cuGLCtxCreate_v2(out, flags, device);
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext *out)
{
	DRIVER_ENTER();
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = context_current();
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSetCurrent(CUcontext context)
{
	DRIVER_ENTER();
	/* A primary context that was reset and is still retained may become current. */
	if (context && !context->alive && !(context->primary && context->retained))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (context)
		set_current(context);
	else if (depth)
		depth--;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	DRIVER_ENTER();
	if (!context || depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	DRIVER_ENTER();
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice(CUdevice *out)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = context->device->ordinal;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize(void)
{
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (capture_forbids_wait(context))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	result = work_wait_all(context);
	vmm_work_done();
	pools_synchronise(context->device, STREAM_ALL);
	return result;
}
