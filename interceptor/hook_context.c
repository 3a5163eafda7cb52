/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts. A context takes hundreds of megabytes (518 MiB on an H100, driver 580.159.04, and as
 * much again for a second one). It is first charged the cost that the enforcer learned from the
 * last one on such a device. Driver truth then corrects the charge, and a context that does not fit
 * is destroyed.
 *
 * Until the cost is known, CONTEXT_MOST is charged, or all that is left. So processes that start
 * together hold at most the quota and one context. The others wait until the first ones show the
 * cost.
 */
#include "function.h"
#include "grant.h"
#include "leaving.h"
#include "overhead.h"
#include "quiet.h"
#include "sibling.h"
#include "table.h"
#include "view.h"

#include <time.h>

/* Driver observation, H100, 580.159.04. */
#define CONTEXT_MOST (518ull << 20)

/* Creating a context takes some tenths of a second. */
#define NAP 20000000 /* nanoseconds */
#define NAPS 100

struct charge {
	uint64_t bytes;
	const struct ledger_account *guess; /* in whose lane it is noted as a load, or NULL */
};

/* Return the known cost, or a guess, which the lane shows until it is settled. */
static struct charge charge_of(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;
	struct charge charge = {0};
	uint64_t left;

	if (device >= 0)
		charge.bytes = __atomic_load_n(&process->ledger->device[device].context_bytes,
		                               __ATOMIC_RELAXED);
	if (device < 0 || charge.bytes)
		return charge;
	charge.guess = &process->held[device].account.slice;
	ledger_begin_load(charge.guess);
	left = view_of(process, device).left;
	charge.bytes = left && left < CONTEXT_MOST ? left : CONTEXT_MOST;
	return charge;
}

static void end_guess(struct charge *charge)
{
	/* In a child that a signal handler forked, the account is empty. */
	if (charge->guess && charge->guess->ledger)
		ledger_end_load(charge->guess);
	charge->guess = NULL;
}

/* Charge a context, and wait while a sibling's guess may still make room. */
static enum grant_result charge_before(CUdevice ordinal, struct charge *charge)
{
	struct process *process = process_attached();
	enum grant_result result = REFUSED;
	struct quiet quiet;

	for (int naps = 0; result == REFUSED && naps < NAPS; naps++) {
		*charge = charge_of(ordinal);
		result = grant_if_free(ordinal, charge->bytes, KIND_OVERHEAD);
		if (result == GRANTED)
			return GRANTED;
		end_guess(charge);
		if (!process || !sibling_loads(process->ledger, process->lane))
			break;
		quiet = quiet_begin();
		nanosleep(&(struct timespec){.tv_nsec = NAP}, NULL);
		quiet_end(quiet);
	}
	return grant(ordinal, charge->bytes, KIND_OVERHEAD, LEDGER_CALL_CONTEXT);
}

/* Correct the charge; false if it does not fit. Only the process's first context on the device can
 * be told from its other memory: a further one is corrected at the next request. */
static bool settle(CUdevice ordinal, bool first, struct charge *charge)
{
	struct process *process = process_get();
	int device = process_device(process, ordinal);
	uint64_t other, real = charge->bytes;
	bool guess_stays = false; /* the next request can settle it */
	struct measured all;

	if (device >= 0 && (first || charge->guess) &&
	    overhead_measure(process, device, true, &all)) {
		other = __atomic_load_n(&process->held[device].overhead, __ATOMIC_RELAXED);
		other -= charge->bytes < other ? charge->bytes : other;
		real = all.bytes > other ? all.bytes - other : 0;
	} else if (charge->guess) {
		real = CONTEXT_MOST; /* unknown */
		guess_stays = device >= 0 && overhead_others_change(process, device);
	}
	if (!first)
		overhead_leave_open(ordinal);
	if (real > charge->bytes &&
	    grant(ordinal, real - charge->bytes, KIND_OVERHEAD, LEDGER_CALL_CONTEXT) != GRANTED)
		return false;
	if (real < charge->bytes)
		process_release(ordinal, charge->bytes - real, KIND_OVERHEAD);
	charge->bytes = real;
	if (guess_stays) {
		overhead_loosen(process, device, real);
		charge->bytes = 0;
	}
	return true;
}

/* The parameters of every entry point. */
struct request {
	enum entry_point entry;
	CUcontext *context;
	void *parameters;
	int count;
	unsigned int flags;
	CUdevice device;
};

static CUresult call_driver(const struct request *r)
{
	switch (r->entry) {
	case ID_cuCtxCreate:
		return DRIVER(cuCtxCreate)(r->context, r->flags, r->device);
	case ID_cuCtxCreate_v2:
		return DRIVER(cuCtxCreate_v2)(r->context, r->flags, r->device);
	case ID_cuCtxCreate_v3:
		return DRIVER(cuCtxCreate_v3)(r->context, r->parameters, r->count, r->flags,
		                              r->device);
	case ID_cuCtxCreate_v4:
		return DRIVER(cuCtxCreate_v4)(r->context, r->parameters, r->flags, r->device);
	case ID_cuGLCtxCreate:
		return DRIVER(cuGLCtxCreate)(r->context, r->flags, r->device);
	case ID_cuGLCtxCreate_v2:
		return DRIVER(cuGLCtxCreate_v2)(r->context, r->flags, r->device);
	default:
		return DRIVER(cuDevicePrimaryCtxRetain)(r->context, r->device);
	}
}

static void destroy_again(const struct request *r)
{
	if (r->entry == ID_cuDevicePrimaryCtxRetain && DRIVER_HAS(cuDevicePrimaryCtxRelease_v2))
		(void)DRIVER(cuDevicePrimaryCtxRelease_v2)(r->device);
	else if (r->entry != ID_cuDevicePrimaryCtxRetain && DRIVER_HAS(cuCtxDestroy_v2))
		(void)DRIVER(cuCtxDestroy_v2)(*r->context);
	*r->context = NULL;
}

/* Return whether the process has no context on the device, and makes none. */
static bool is_first(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	return device < 0 || (!context_any(ordinal) && !overhead_others_change(process, device));
}

static CUresult make(const struct request *r)
{
	bool first = is_first(r->device);
	struct charge charge;
	CUresult result;

	if (charge_before(r->device, &charge) != GRANTED)
		return grant_error_on(r->device);
	result = call_driver(r);
	if (result == CUDA_SUCCESS && !settle(r->device, first, &charge)) {
		destroy_again(r);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	end_guess(&charge);
	if (result != CUDA_SUCCESS) {
		process_release(r->device, charge.bytes, KIND_OVERHEAD);
		return result;
	}
	context_note((uint64_t)(uintptr_t)*r->context,
	             &(struct context){.ordinal = r->device, .bytes = charge.bytes});
	function_contexts_changed();
	return result;
}

static CUresult create(const struct request *r)
{
	CUresult result;

	if (!r->context)
		return call_driver(r);
	overhead_change_begin(r->device);
	result = make(r);
	overhead_change_end(r->device);
	return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	return create(&(struct request){
	    .entry = ID_cuCtxCreate, .context = context, .flags = flags, .device = device});
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	return create(&(struct request){
	    .entry = ID_cuCtxCreate_v2, .context = context, .flags = flags, .device = device});
}

CUresult cuCtxCreate_v3(CUcontext *context, void *parameters, int count, unsigned int flags,
                        CUdevice device)
{
	return create(&(struct request){.entry = ID_cuCtxCreate_v3,
	                                .context = context,
	                                .parameters = parameters,
	                                .count = count,
	                                .flags = flags,
	                                .device = device});
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
	return create(&(struct request){.entry = ID_cuCtxCreate_v4,
	                                .context = context,
	                                .parameters = parameters,
	                                .flags = flags,
	                                .device = device});
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
	return create(&(struct request){
	    .entry = ID_cuGLCtxCreate, .context = context, .flags = flags, .device = device});
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
	return create(&(struct request){
	    .entry = ID_cuGLCtxCreate_v2, .context = context, .flags = flags, .device = device});
}

CUresult cuCtxDestroy(CUcontext context)
{
	return leaving_context(DRIVER(cuCtxDestroy), context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	return leaving_context(DRIVER(cuCtxDestroy_v2), context);
}

/* Destroys the context if this was its last use, which the driver does not report. A context of
 * cuCtxCreate has one use unless cuCtxAttach (deprecated since CUDA 4) made more. */
CUresult cuCtxDetach(CUcontext context)
{
	return leaving_context(DRIVER(cuCtxDetach), context);
}

/* --- primary contexts ------------------------------------------------------------------------ */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct request r = {
	    .entry = ID_cuDevicePrimaryCtxRetain, .context = context, .device = device};
	struct primary *primary = context_primary(device);
	CUresult result;

	if (!primary)
		return call_driver(&r);
	lock_take(&primary->lock);
	if (!context || context_primary_active(device))
		result = call_driver(&r);
	else if ((result = create(&r)) == CUDA_SUCCESS)
		primary->handle = (uint64_t)(uintptr_t)*context;
	lock_give(&primary->lock);
	return result;
}

static CUresult leave_primary(CUresult (*call)(CUdevice device), CUdevice device)
{
	struct primary *primary = leaving_primary(device);

	return primary ? left_primary(primary, device, call(device)) : call(device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return leave_primary(DRIVER(cuDevicePrimaryCtxRelease), device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return leave_primary(DRIVER(cuDevicePrimaryCtxRelease_v2), device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return leave_primary(DRIVER(cuDevicePrimaryCtxReset), device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return leave_primary(DRIVER(cuDevicePrimaryCtxReset_v2), device);
}
