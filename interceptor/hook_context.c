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
	int device = process_device_attached(ordinal);
	struct charge charge = {0};
	uint64_t left;

	if (device >= 0)
		charge.bytes = __atomic_load_n(
		    &process_seen()->ledger->device[device].context_bytes, __ATOMIC_RELAXED);
	if (device < 0 || charge.bytes)
		return charge;
	charge.guess = &process_seen()->held[device].account.slice;
	ledger_begin_load(charge.guess);
	left = view_of(device).left;
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

	if (device >= 0 && (first || charge->guess) && overhead_measure(device, true, &all)) {
		other = __atomic_load_n(&process->held[device].overhead, __ATOMIC_RELAXED);
		other -= charge->bytes < other ? charge->bytes : other;
		real = all.bytes > other ? all.bytes - other : 0;
	} else if (charge->guess) {
		real = CONTEXT_MOST; /* unknown */
		guess_stays = device >= 0 && overhead_others_change(device);
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
		overhead_loosen(device, real);
		charge->bytes = 0;
	}
	return true;
}

/* Return whether the process has no context on the device, and makes none. */
static bool is_first(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	return device < 0 || (!context_any(ordinal) && !overhead_others_change(device));
}

/* A context that is being made. */
struct making {
	struct charge charge;
	bool first;
};

static CUresult begin(struct making *making, CUdevice device)
{
	CUresult result = CUDA_SUCCESS;

	overhead_change_begin(device);
	making->first = is_first(device);
	if (charge_before(device, &making->charge) != GRANTED) {
		result = grant_error_on(device);
		overhead_change_end(device);
	}
	return result;
}

static CUresult end(struct making *making, CUresult result, CUcontext *context, CUdevice device,
                    bool primary)
{
	if (result == CUDA_SUCCESS && !settle(device, making->first, &making->charge)) {
		if (primary && DRIVER_HAS(cuDevicePrimaryCtxRelease_v2))
			(void)DRIVER(cuDevicePrimaryCtxRelease_v2)(device);
		else if (!primary && DRIVER_HAS(cuCtxDestroy_v2))
			(void)DRIVER(cuCtxDestroy_v2)(*context);
		*context = NULL;
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	end_guess(&making->charge);
	if (result == CUDA_SUCCESS) {
		context_note((uint64_t)(uintptr_t)*context,
		             &(struct context){.ordinal = device, .bytes = making->charge.bytes});
		function_contexts_changed();
	} else {
		process_release(device, making->charge.bytes, KIND_OVERHEAD);
	}
	overhead_change_end(device);
	return result;
}

/* Charge the context that `call` makes, or destroy it if it does not fit. */
#define MAKING(context, device, primary, call)                                                     \
	do {                                                                                       \
		struct making making;                                                              \
		CUresult result;                                                                   \
                                                                                                   \
		if (!(context))                                                                    \
			return call;                                                               \
		result = begin(&making, device);                                                   \
		if (result != CUDA_SUCCESS)                                                        \
			return result;                                                             \
		return end(&making, call, context, device, primary);                               \
	} while (0)

#define CREATES(name, parameters, arguments)                                                       \
	CUresult name parameters                                                                   \
	{                                                                                          \
		MAKING(context, device, false, DRIVER(name) arguments);                            \
	}

CREATES(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
        (context, flags, device))
CREATES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
        (context, flags, device))
CREATES(cuCtxCreate_v3,
        (CUcontext * context, void *parameters, int count, unsigned int flags, CUdevice device),
        (context, parameters, count, flags, device))
CREATES(cuCtxCreate_v4,
        (CUcontext * context, void *parameters, unsigned int flags, CUdevice device),
        (context, parameters, flags, device))
CREATES(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
        (context, flags, device))
CREATES(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
        (context, flags, device))

#define DESTROYS(name)                                                                             \
	CUresult name(CUcontext context)                                                           \
	{                                                                                          \
		return leaving_context(DRIVER(name), context);                                     \
	}

DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)

/* Destroys the context if this was its last use, which the driver does not report. A context of
 * cuCtxCreate has one use unless cuCtxAttach (deprecated since CUDA 4) made more. */
DESTROYS(cuCtxDetach)

/* --- primary contexts ------------------------------------------------------------------------ */

static CUresult make_primary(CUcontext *context, CUdevice device)
{
	MAKING(context, device, true, DRIVER(cuDevicePrimaryCtxRetain)(context, device));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	struct primary *primary = context_primary(device);
	CUresult result;

	if (!primary)
		return DRIVER(cuDevicePrimaryCtxRetain)(context, device);
	LOCKED(&primary->lock);
	if (!context || context_primary_active(device))
		result = DRIVER(cuDevicePrimaryCtxRetain)(context, device);
	else if ((result = make_primary(context, device)) == CUDA_SUCCESS)
		primary->handle = (uint64_t)(uintptr_t)*context;
	return result;
}

#define LEAVES_PRIMARY(name)                                                                       \
	CUresult name(CUdevice device)                                                             \
	{                                                                                          \
		struct primary *primary = leaving_primary(device);                                 \
		CUresult result = DRIVER(name)(device);                                            \
                                                                                                   \
		return primary ? left_primary(primary, device, result) : result;                   \
	}

LEAVES_PRIMARY(cuDevicePrimaryCtxRelease)
LEAVES_PRIMARY(cuDevicePrimaryCtxRelease_v2)
LEAVES_PRIMARY(cuDevicePrimaryCtxReset)
LEAVES_PRIMARY(cuDevicePrimaryCtxReset_v2)
