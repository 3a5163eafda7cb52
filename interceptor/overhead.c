/* SPDX-License-Identifier: Apache-2.0 */
#include "overhead.h"

#include "grant.h"
#include "state.h"
#include "table.h"

#include <time.h>

/* How often the driver is asked again because other threads charged meanwhile. */
#define TRIES 3
/* When nobody could say, the next request asks again, but not more often than this. */
#define PAUSE 10 /* milliseconds */
/* A stream takes 0.55 MiB (driver observation, H100, 580.159.04): look after so many. */
#define STREAMS 8

#define CAPTURE_MODE_RELAXED 2 /* CUstreamCaptureMode */

static struct overheads *overheads_of(struct process *process)
{
	return &state_of(process)->overheads;
}

static uint64_t milliseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What the lane says at one time. */
struct instant {
	uint64_t number, asked; /* for: by the program, as far as driver truth lists it */
	struct ledger_uncharged calls;
};

static struct instant look(struct process *process, int device)
{
	const struct held *held = &process->held[device];
	const struct ledger_account *account = &held->account.slice;
	struct instant now;
	uint64_t other;

	lock_take(&process->account_lock);
	other = held->overhead + held->unlisted;
	now = (struct instant){
	    .number = account->number,
	    .asked = account->held > other ? account->held - other : 0,
	    .calls = ledger_uncharged(account->ledger, account->device, account->lane)};
	lock_give(&process->account_lock);
	return now;
}

bool overhead_measure(struct process *process, int device, uint64_t *bytes)
{
	for (int tries = 0; tries < TRIES; tries++) {
		struct instant before = look(process, device), after;
		uint64_t truth;

		if (!process_truth(device, &truth))
			return false;
		after = look(process, device);
		if (before.number != after.number || after.calls.under_way ||
		    before.calls.ended != after.calls.ended)
			continue;
		*bytes = truth > after.asked ? truth - after.asked : 0;
		return true;
	}
	return false;
}

void overhead_leave_open(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0)
		__atomic_fetch_or(&overheads_of(process)->open, 1u << device, __ATOMIC_RELAXED);
}

/* Before the driver is asked: what is left open meanwhile stays so. */
static void close_device(struct process *process, int device)
{
	__atomic_fetch_and(&overheads_of(process)->open, ~(1u << device), __ATOMIC_RELAXED);
}

bool overhead_is_open(struct process *process, int device)
{
	return __atomic_load_n(&overheads_of(process)->open, __ATOMIC_RELAXED) & 1u << device;
}

static uint64_t charged(struct process *process, int device)
{
	return __atomic_load_n(&process->held[device].overhead, __ATOMIC_RELAXED);
}

/* Make what is charged what there is, as far as it is nobody's. False if nobody knows. */
static bool settle(struct process *process, CUdevice ordinal, int device)
{
	struct overheads *overheads = overheads_of(process);
	uint64_t all, now, loose, less;

	if (!overhead_measure(process, device, &all))
		return false;
	lock_take(&overheads->lock);
	now = charged(process, device);
	loose = overheads->loose[device];
	/* Others look without the lock whether there is any. */
	if (all > now) {
		__atomic_store_n(&overheads->loose[device], loose + all - now, __ATOMIC_RELAXED);
		process_charge_anyway(ordinal, all - now, KIND_OVERHEAD);
	} else if (all < now && loose) {
		less = now - all < loose ? now - all : loose;
		__atomic_store_n(&overheads->loose[device], loose - less, __ATOMIC_RELAXED);
		process_release(ordinal, less, KIND_OVERHEAD);
	}
	lock_give(&overheads->lock);
	return true;
}

void overhead_settle(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0 && !settle(process, ordinal, device))
		overhead_leave_open(ordinal);
}

void overhead_settle_loose(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0 && __atomic_load_n(&overheads_of(process)->loose[device], __ATOMIC_RELAXED))
		overhead_settle(ordinal);
}

void overhead_close(struct process *process, CUdevice ordinal, int device)
{
	struct overheads *overheads = overheads_of(process);
	uint64_t now = milliseconds();

	if (now < __atomic_load_n(&overheads->not_before, __ATOMIC_RELAXED))
		return;
	close_device(process, device);
	if (settle(process, ordinal, device))
		return;
	__atomic_store_n(&overheads->not_before, now + PAUSE, __ATOMIC_RELAXED);
	__atomic_fetch_or(&overheads->open, 1u << device, __ATOMIC_RELAXED);
}

/* Free bytes of the current device, 0 if that cannot be asked. In a thread that records a graph the
 * question must not end the recording. */
static uint64_t bytes_left(void)
{
	int mode = CAPTURE_MODE_RELAXED;
	size_t available = 0, total = 0;
	bool exchanged = DRIVER_HAS(cuThreadExchangeStreamCaptureMode) &&
	                 DRIVER(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;

	if (!DRIVER_HAS(cuMemGetInfo_v2) ||
	    DRIVER(cuMemGetInfo_v2)(&available, &total) != CUDA_SUCCESS)
		available = 0;
	if (exchanged)
		(void)DRIVER(cuThreadExchangeStreamCaptureMode)(&mode);
	return available;
}

struct watch watch_begin(void)
{
	struct watch watch = {.ordinal = -1};
	struct process *process;
	int device;

	if (!context_current())
		return watch;
	watch.ordinal = process_current_ordinal();
	if (watch.ordinal < 0)
		return watch;
	/* What was taken before is not this call's. */
	process = process_attached();
	device = process ? process_device(process, watch.ordinal) : -1;
	if (device >= 0 && overhead_is_open(process, device))
		overhead_close(process, watch.ordinal, device);
	watch.left = bytes_left();
	return watch;
}

bool watch_end(const struct watch *watch, enum attach_call call, uint64_t *bytes)
{
	struct process *process = watch->ordinal >= 0 ? process_attached() : NULL;
	int device = process ? process_device(process, watch->ordinal) : -1;
	uint64_t all, now;

	*bytes = 0;
	if (device < 0 || bytes_left() == watch->left)
		return true;
	/* All that is not charged is charged here, so not by the request itself, too. */
	close_device(process, device);
	if (!overhead_measure(process, device, &all)) {
		overhead_leave_open(watch->ordinal);
		return true;
	}
	now = charged(process, device);
	*bytes = all > now ? all - now : 0;
	return grant(watch->ordinal, *bytes, KIND_OVERHEAD, call) == GRANTED;
}

void overhead_stream_made(void)
{
	struct process *process = process_get();

	if (process &&
	    __atomic_add_fetch(&overheads_of(process)->streams, 1, __ATOMIC_RELAXED) % STREAMS == 0)
		overhead_leave_open(process_current_ordinal());
}
