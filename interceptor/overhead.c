/* SPDX-License-Identifier: Apache-2.0 */
#include "overhead.h"

#include "block.h"
#include "grant.h"
#include "hold.h"
#include "monotonic.h"
#include "quiet.h"
#include "state.h"
#include "table.h"

#include <time.h>

/* Maximum number of measurements, if other threads charge during them. */
#define TRIES 4
/* Minimum time between requests after driver truth was unavailable. */
#define PAUSE 10000000 /* nanoseconds */

/* Maximum waits of a load for changes, and of a change for loads. */
#define NAP 200000 /* nanoseconds */
#define NAPS_OF_LOAD 2500
#define NAPS_OF_CHANGE 25

static void sleep_briefly(void)
{
	struct timespec t = {.tv_nsec = NAP};
	QUIETLY;

	nanosleep(&t, NULL);
}

/* The lane at one time. */
struct instant {
	uint64_t number, asked; /* requested by the program, and listed by driver truth */
	struct ledger_uncharged calls;
};

static struct instant read_lane(int device)
{
	const struct held *held = &process_seen()->held[device];
	const struct ledger_account *account = &held->account.slice;
	uint64_t other;

	LOCKED(&process_seen()->account_lock);
	other = held->overhead + held->unlisted;
	return (struct instant){
	    .number = account->number,
	    .asked = account->held > other ? account->held - other : 0,
	    .calls = ledger_uncharged(account->ledger, account->device, account->lane)};
}

static void leave_open(int device)
{
	__atomic_fetch_or(&process_seen()->open, 1u << device, __ATOMIC_RELAXED);
}

#define CHANGE_BEGUN ((1ull << 32) + 1)

static uint64_t changes(int device)
{
	return __atomic_load_n(&state.overheads.changes[device], __ATOMIC_ACQUIRE);
}

static bool others_change(int device, bool own)
{
	return (uint32_t)changes(device) > (uint32_t)own;
}

bool overhead_others_change(int device)
{
	return others_change(device, true);
}

static void defer_requests(void)
{
	__atomic_store_n(&state.overheads.not_before, monotonic_nanoseconds() + PAUSE,
	                 __ATOMIC_RELAXED);
}

bool overhead_measure(int device, bool own, struct measured *measured)
{
	for (int tries = 0; tries < TRIES && !others_change(device, own); tries++) {
		uint64_t begun = changes(device), truth;
		struct instant before = read_lane(device), after;

		if (!process_truth(device, &truth))
			break;
		after = read_lane(device);
		if (before.number != after.number || after.calls.under_way ||
		    before.calls.ended != after.calls.ended || begun != changes(device) ||
		    (uint32_t)begun > (uint32_t)own)
			continue;
		*measured = (struct measured){truth > after.asked ? truth - after.asked : 0, begun};
		return true;
	}
	leave_open(device);
	if (!others_change(device, own))
		defer_requests();
	return false;
}

static struct ledger_uncharged loads_of(int device)
{
	const struct ledger_account *account = &process_seen()->held[device].account.slice;

	return ledger_loads(account->ledger, account->lane);
}

void overhead_leave_open(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device >= 0)
		leave_open(device);
}

static uint64_t charged(int device)
{
	return __atomic_load_n(&process_seen()->held[device].overhead, __ATOMIC_RELAXED);
}

/* Called with overheads.lock held. */
static void set_loose(struct overheads *overheads, unsigned device, uint64_t bytes)
{
	__atomic_store_n(&overheads->loose[device], bytes, __ATOMIC_RELAXED);
}

void overhead_loosen(int device, uint64_t bytes)
{
	struct overheads *overheads = &state.overheads;

	lock_take(&overheads->lock);
	set_loose(overheads, (unsigned)device, overheads->loose[device] + bytes);
	lock_give(&overheads->lock);
	leave_open(device);
}

void overhead_tighten(CUdevice ordinal, uint64_t bytes)
{
	struct overheads *overheads = &state.overheads;
	int device = process_device_attached(ordinal);
	uint64_t less;

	if (device < 0)
		return;
	LOCKED(&overheads->lock);
	less = bytes < overheads->loose[device] ? bytes : overheads->loose[device];
	set_loose(overheads, (unsigned)device, overheads->loose[device] - less);
	process_release(ordinal, less, KIND_OVERHEAD);
}

/* Without driver truth: there are at most as many shared blocks as objects in them. */
static void release_guessed(CUdevice ordinal, int device)
{
	struct overheads *overheads = &state.overheads;
	uint64_t most = hold_count_sharing(ordinal) * BLOCK_BYTES, less = 0;

	LOCKED(&overheads->lock);
	if (overheads->guessed[device] > most)
		less = overheads->guessed[device] - most;
	overheads->guessed[device] -= less;
	set_loose(overheads, (unsigned)device, overheads->loose[device] - less);
	if (less)
		process_release(ordinal, less, KIND_OVERHEAD);
}

/* Adjusts the loose charge to driver truth. */
static void settle(CUdevice ordinal, int device)
{
	struct overheads *overheads = &state.overheads;
	struct ledger_uncharged loads = loads_of(device), then = loads;
	struct measured all;
	uint64_t now, loose, less;

	/* A load under way charges its own overhead. */
	if (loads.under_way) {
		leave_open(device);
		return;
	}
	if (!overhead_measure(device, false, &all)) {
		release_guessed(ordinal, device);
		return;
	}
	LOCKED(&overheads->lock);
	overheads->guessed[device] = 0;
	now = charged(device);
	loads = loads_of(device);
	if (loads.under_way || loads.ended != then.ended || changes(device) != all.changes) {
		leave_open(device); /* stale */
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
}

void overhead_settle(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device >= 0)
		settle(ordinal, device);
}

void overhead_settle_loose(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device >= 0 && __atomic_load_n(&state.overheads.loose[device], __ATOMIC_RELAXED))
		overhead_settle(ordinal);
}

/* Settles an open device, except less than PAUSE after a failed request. */
static void close_device(CUdevice ordinal, int device)
{
	if (monotonic_nanoseconds() <
	    __atomic_load_n(&state.overheads.not_before, __ATOMIC_RELAXED))
		return;
	/* First: a device left open from here on stays so. */
	__atomic_fetch_and(&process_seen()->open, ~(1u << device), __ATOMIC_ACQ_REL);
	settle(ordinal, device);
}
UPCALL(grant_settle, close_device);

void overhead_change_begin(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device < 0)
		return;
	/* A waiting load goes first: a tenth of a millisecond. */
	for (int naps = 0;
	     naps < NAPS_OF_CHANGE && __atomic_load_n(&state.overheads.measuring, __ATOMIC_ACQUIRE);
	     naps++)
		sleep_briefly();
	__atomic_fetch_add(&state.overheads.changes[device], CHANGE_BEGUN, __ATOMIC_ACQ_REL);
}

void overhead_change_end(CUdevice ordinal)
{
	int device = process_device_attached(ordinal);

	if (device >= 0)
		__atomic_fetch_sub(&state.overheads.changes[device], 1, __ATOMIC_ACQ_REL);
}

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
	int device;

	if (!context_current())
		return watch;
	watch.ordinal = process_current_ordinal();
	device = process_device_attached(watch.ordinal);
	if (device >= 0) {
		/* Earlier overhead is not this call's. */
		if (__atomic_load_n(&process_seen()->open, __ATOMIC_RELAXED) & 1u << device)
			close_device(watch.ordinal, device);
		watch.account = &process_seen()->held[device].account.slice;
		ledger_begin_load(watch.account);
		watch.loads = loads_of(device);
		watch.left = bytes_left();
	}
	return watch;
}

/* (The account is empty in a child that a signal handler forked.) */
static bool is_counted(const struct watch *watch)
{
	return watch->account && watch->account->ledger;
}

static bool took_nothing(const struct watch *watch)
{
	return watch->left && bytes_left() == watch->left;
}

static bool measure_load(const struct watch *watch, struct measured *all)
{
	struct overheads *overheads = &state.overheads;
	int device = (int)watch->account->device;
	bool known;

	/* A context takes a fraction of a second to make or destroy. */
	__atomic_fetch_add(&overheads->measuring, 1, __ATOMIC_ACQ_REL);
	for (int naps = 0; naps < NAPS_OF_LOAD && others_change(device, false); naps++)
		sleep_briefly();
	known = overhead_measure(device, false, all);
	__atomic_fetch_sub(&overheads->measuring, 1, __ATOMIC_ACQ_REL);
	return known;
}

/* Reports whether no other load ran since this one began: else the measured bytes may be of
 * both. */
static bool ran_alone(const struct watch *watch)
{
	struct ledger_uncharged now = ledger_loads(watch->account->ledger, watch->account->lane);

	return now.under_way == 1 && watch->loads.under_way == 1 && now.ended == watch->loads.ended;
}

/* Charges the measured bytes that are not charged yet. Of several concurrent loads the first
 * charges the bytes of all, and the last measurement covers all. Returns false if they do not
 * fit. */
static bool charge_load(const struct watch *watch, enum ledger_call call,
                        const struct measured *all, uint64_t *bytes)
{
	struct overheads *overheads = &state.overheads;
	unsigned device = watch->account->device;
	bool fits = true;
	uint64_t now;

	LOCKED(&overheads->lock);
	now = charged((int)device);
	if (changes((int)device) != all->changes) {
		leave_open((int)device); /* stale */
	} else if (all->bytes > now) {
		*bytes = all->bytes - now;
		fits = grant(watch->ordinal, *bytes, KIND_OVERHEAD, call) == GRANTED;
		if (fits && !ran_alone(watch)) {
			set_loose(overheads, device, overheads->loose[device] + *bytes);
			*bytes = 0;
		}
	}
	return fits;
}

/* Charges what the call took. *known is false if driver truth does not tell. */
static bool charge_taken(const struct watch *watch, enum ledger_call call, uint64_t *bytes,
                         bool *known)
{
	struct measured all;

	*bytes = 0;
	*known = true;
	if (!is_counted(watch) || took_nothing(watch))
		return true;
	*known = measure_load(watch, &all);
	return !*known || charge_load(watch, call, &all, bytes);
}

bool watch_end(const struct watch *watch, enum ledger_call call, uint64_t *bytes)
{
	bool known, fits = charge_taken(watch, call, bytes, &known);

	watch_drop(watch);
	return fits;
}

bool watch_end_block(const struct watch *watch, enum ledger_call call)
{
	struct overheads *overheads = &state_get()->overheads;
	uint64_t bytes;
	bool known, fits = charge_taken(watch, call, &bytes, &known);
	unsigned device;

	if (!known) {
		bytes = BLOCK_BYTES;
		fits = grant(watch->ordinal, bytes, KIND_OVERHEAD, call) == GRANTED;
	}
	if (fits && bytes) {
		device = watch->account->device;
		lock_take(&overheads->lock);
		set_loose(overheads, device, overheads->loose[device] + bytes);
		overheads->guessed[device] += known ? 0 : bytes;
		lock_give(&overheads->lock);
	}
	watch_drop(watch);
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
	if (is_counted(watch))
		ledger_end_load(watch->account);
}
