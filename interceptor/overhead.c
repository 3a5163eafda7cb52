/* SPDX-License-Identifier: Apache-2.0 */
#include "overhead.h"

#include "block.h"
#include "grant.h"
#include "hold.h"
#include "quiet.h"
#include "state.h"
#include "table.h"

#include <time.h>

/* How often the driver is asked again because other threads charged meanwhile. */
#define TRIES 4
/* When nobody could say, the next request asks again, but not more often than this. */
#define PAUSE 10 /* milliseconds */

/* How long a load waits for contexts that come or go at that moment, and a context for a load. */
#define NAP 200000 /* nanoseconds */
#define NAPS_OF_LOAD 2500
#define NAPS_OF_CHANGE 25

static struct overheads *overheads_of(struct process *process)
{
	return &state_of(process)->overheads;
}

static void nap(void)
{
	struct timespec t = {.tv_nsec = NAP};
	struct quiet quiet = quiet_begin();

	nanosleep(&t, NULL);
	quiet_end(quiet);
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

static void leave_open(struct process *process, int device)
{
	__atomic_fetch_or(&overheads_of(process)->open, 1u << device, __ATOMIC_RELAXED);
}

#define CHANGE_BEGUN ((1ull << 32) + 1)

static uint64_t changes(struct process *process, int device)
{
	return __atomic_load_n(&overheads_of(process)->changes[device], __ATOMIC_ACQUIRE);
}

static bool others_change(struct process *process, int device, bool own)
{
	return (uint32_t)changes(process, device) > (uint32_t)own;
}

bool overhead_others_change(struct process *process, int device)
{
	return others_change(process, device, true);
}

/* The device is asked again soon, but not by the next of a million requests. */
static void wait_a_little(struct process *process)
{
	__atomic_store_n(&overheads_of(process)->not_before, milliseconds() + PAUSE,
	                 __ATOMIC_RELAXED);
}

bool overhead_measure(struct process *process, int device, bool own, struct measured *measured)
{
	for (int tries = 0; tries < TRIES && !others_change(process, device, own); tries++) {
		uint64_t begun = changes(process, device), truth;
		struct instant before = look(process, device), after;

		if (!process_truth(device, &truth))
			break;
		after = look(process, device);
		if (before.number != after.number || after.calls.under_way ||
		    before.calls.ended != after.calls.ended || begun != changes(process, device) ||
		    (uint32_t)begun > (uint32_t)own)
			continue;
		*measured = (struct measured){truth > after.asked ? truth - after.asked : 0, begun};
		return true;
	}
	leave_open(process, device);
	if (!others_change(process, device, own))
		wait_a_little(process);
	return false;
}

struct ledger_uncharged overhead_loads(struct process *process, int device)
{
	const struct ledger_account *account = &process->held[device].account.slice;

	return ledger_loads(account->ledger, account->lane);
}

void overhead_leave_open(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0)
		leave_open(process, device);
}

bool overhead_is_open(struct process *process, int device)
{
	return __atomic_load_n(&overheads_of(process)->open, __ATOMIC_RELAXED) & 1u << device;
}

static uint64_t charged(struct process *process, int device)
{
	return __atomic_load_n(&process->held[device].overhead, __ATOMIC_RELAXED);
}

/* With the lock held. */
static void set_loose(struct overheads *overheads, unsigned device, uint64_t bytes)
{
	__atomic_store_n(&overheads->loose[device], bytes, __ATOMIC_RELAXED);
}

void overhead_loosen(struct process *process, int device, uint64_t bytes)
{
	struct overheads *overheads = overheads_of(process);

	lock_take(&overheads->lock);
	set_loose(overheads, (unsigned)device, overheads->loose[device] + bytes);
	lock_give(&overheads->lock);
	leave_open(process, device);
}

void overhead_tighten(struct process *process, CUdevice ordinal, uint64_t bytes)
{
	struct overheads *overheads = overheads_of(process);
	int device = process_device(process, ordinal);
	uint64_t less;

	if (device < 0)
		return;
	lock_take(&overheads->lock);
	less = bytes < overheads->loose[device] ? bytes : overheads->loose[device];
	set_loose(overheads, (unsigned)device, overheads->loose[device] - less);
	process_release(ordinal, less, KIND_OVERHEAD);
	lock_give(&overheads->lock);
}

/* Nobody says what there is: then no more blocks are shared than there are things in them. */
static void give_back_guessed(struct process *process, CUdevice ordinal, int device)
{
	struct overheads *overheads = overheads_of(process);
	uint64_t most = hold_count_sharing(ordinal) * BLOCK_BYTES, less = 0;

	lock_take(&overheads->lock);
	if (overheads->guessed[device] > most)
		less = overheads->guessed[device] - most;
	overheads->guessed[device] -= less;
	set_loose(overheads, (unsigned)device, overheads->loose[device] - less);
	if (less)
		process_release(ordinal, less, KIND_OVERHEAD);
	lock_give(&overheads->lock);
}

/* Make what is charged what there is, as far as it is nobody's. */
static void settle(struct process *process, CUdevice ordinal, int device)
{
	struct overheads *overheads = overheads_of(process);
	struct ledger_uncharged loads = overhead_loads(process, device), then = loads;
	struct measured all;
	uint64_t now, loose, less;

	/* What a load took is for it to charge, as long as it is under way. */
	if (loads.under_way) {
		leave_open(process, device);
		return;
	}
	if (!overhead_measure(process, device, false, &all)) {
		give_back_guessed(process, ordinal, device);
		return;
	}
	lock_take(&overheads->lock);
	overheads->guessed[device] = 0;
	now = charged(process, device);
	loads = overhead_loads(process, device);
	if (loads.under_way || loads.ended != then.ended ||
	    changes(process, device) != all.changes) {
		leave_open(process, device); /* out of date */
	} else if (all.bytes > now) {
		loose = overheads->loose[device] + all.bytes - now;
		set_loose(overheads, (unsigned)device, loose);
		process_charge_anyway(ordinal, all.bytes - now, KIND_OVERHEAD);
	} else if (all.bytes < now && overheads->loose[device]) {
		loose = overheads->loose[device];
		less = now - all.bytes < loose ? now - all.bytes : loose;
		set_loose(overheads, (unsigned)device, loose - less);
		process_release(ordinal, less, KIND_OVERHEAD);
	}
	lock_give(&overheads->lock);
}

void overhead_settle(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0)
		settle(process, ordinal, device);
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

	if (milliseconds() < __atomic_load_n(&overheads->not_before, __ATOMIC_RELAXED))
		return;
	/* First: what is left open meanwhile stays so. */
	__atomic_fetch_and(&overheads->open, ~(1u << device), __ATOMIC_ACQ_REL);
	settle(process, ordinal, device);
}

void overhead_change_begin(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device < 0)
		return;
	/* A load that waits has its turn first; it takes a tenth of a millisecond. */
	for (int naps = 0; naps < NAPS_OF_CHANGE &&
	                   __atomic_load_n(&overheads_of(process)->measuring, __ATOMIC_ACQUIRE);
	     naps++)
		nap();
	__atomic_fetch_add(&overheads_of(process)->changes[device], CHANGE_BEGUN, __ATOMIC_ACQ_REL);
}

void overhead_change_end(CUdevice ordinal)
{
	struct process *process = process_attached();
	int device = process ? process_device(process, ordinal) : -1;

	if (device >= 0)
		__atomic_fetch_sub(&overheads_of(process)->changes[device], 1, __ATOMIC_ACQ_REL);
}

/* Free bytes of the current device; 0 if that cannot be asked. */
static uint64_t bytes_left(void)
{
	size_t available = 0, total = 0;

	if (!DRIVER_HAS(cuMemGetInfo_v2) ||
	    DRIVER(cuMemGetInfo_v2)(&available, &total) != CUDA_SUCCESS)
		return 0;
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
	process = process_attached();
	device = process ? process_device(process, watch.ordinal) : -1;
	if (device >= 0) {
		/* What was taken before is not this call's. */
		if (overhead_is_open(process, device))
			overhead_close(process, watch.ordinal, device);
		watch.account = &process->held[device].account.slice;
		ledger_begin_load(watch.account);
		watch.loads = overhead_loads(process, device);
		watch.left = bytes_left();
	}
	return watch;
}

/* True if the card's free memory is as it was before the call. */
static bool took_nothing(const struct watch *watch)
{
	return watch->left && bytes_left() == watch->left;
}

/* Measure after the call; without a figure that is left for later. */
static bool measure_load(const struct watch *watch, struct measured *all)
{
	struct process *process = process_get();
	struct overheads *overheads = overheads_of(process);
	int device = (int)watch->account->device;
	bool known;

	/* A context takes a fraction of a second to come or go. */
	__atomic_fetch_add(&overheads->measuring, 1, __ATOMIC_ACQ_REL);
	for (int naps = 0; naps < NAPS_OF_LOAD && others_change(process, device, false); naps++)
		nap();
	known = overhead_measure(process, device, false, all);
	__atomic_fetch_sub(&overheads->measuring, 1, __ATOMIC_ACQ_REL);
	return known;
}

/* Whether another load was under way at any time since this one began: then what was measured may
 * be of both. */
static bool alone(const struct watch *watch)
{
	struct ledger_uncharged now = ledger_loads(watch->account->ledger, watch->account->lane);

	return now.under_way == 1 && watch->loads.under_way == 1 && now.ended == watch->loads.ended;
}

/*
 * Charge what was measured, as far as nobody has. One thread at a time: what others measured at the
 * same time is charged by the first of them, and whoever measured last has seen what all of them
 * took. False if it does not fit.
 */
static bool charge_load(const struct watch *watch, enum ledger_call call,
                        const struct measured *all, uint64_t *bytes)
{
	struct process *process = process_get();
	struct overheads *overheads = overheads_of(process);
	unsigned device = watch->account->device;
	bool fits = true;
	uint64_t now;

	lock_take(&overheads->lock);
	now = charged(process, (int)device);
	if (changes(process, (int)device) != all->changes) {
		leave_open(process, (int)device); /* out of date */
	} else if (all->bytes > now) {
		*bytes = all->bytes - now;
		fits = grant(watch->ordinal, *bytes, KIND_OVERHEAD, call) == GRANTED;
		if (fits && !alone(watch)) {
			set_loose(overheads, device, overheads->loose[device] + *bytes);
			*bytes = 0;
		}
	}
	lock_give(&overheads->lock);
	return fits;
}

bool watch_end(const struct watch *watch, enum ledger_call call, uint64_t *bytes)
{
	struct measured all;
	bool fits = true;

	*bytes = 0;
	/* (In a child that a signal's handler forked meanwhile the account is empty.) */
	if (!watch->account || !watch->account->ledger)
		return true;
	if (!took_nothing(watch) && measure_load(watch, &all))
		fits = charge_load(watch, call, &all, bytes);
	ledger_end_load(watch->account);
	return fits;
}

bool watch_end_block(const struct watch *watch, enum ledger_call call)
{
	struct measured all;
	struct overheads *overheads = overheads_of(process_get());
	uint64_t bytes = 0, guessed = 0;
	bool fits = true;
	unsigned device;

	if (!watch->account || !watch->account->ledger)
		return true;
	device = watch->account->device;
	if (!took_nothing(watch)) {
		if (measure_load(watch, &all)) {
			fits = charge_load(watch, call, &all, &bytes);
		} else {
			guessed = BLOCK_BYTES;
			fits = grant(watch->ordinal, guessed, KIND_OVERHEAD, call) == GRANTED;
		}
		lock_take(&overheads->lock);
		if (fits) {
			set_loose(overheads, device, overheads->loose[device] + bytes + guessed);
			overheads->guessed[device] += guessed;
		}
		lock_give(&overheads->lock);
	}
	ledger_end_load(watch->account);
	return fits;
}

void watch_end_less(const struct watch *watch, CUdevice ordinal)
{
	bool same = watch->ordinal == ordinal && took_nothing(watch);

	watch_drop(watch);
	if (!same)
		overhead_settle_loose(ordinal);
}

void watch_drop(const struct watch *watch)
{
	if (watch->account && watch->account->ledger)
		ledger_end_load(watch->account);
}
