/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overhead: device memory that the driver takes beyond what the program requested. The amount is
 * known only afterwards, from driver truth. Contexts, code and large graphs are charged after their
 * call. A device is left open if driver truth was unavailable then, or the charge was an estimate
 * (streams): it is settled before the next request there is granted.
 *
 * An allocation alone never requests driver truth.
 */
#ifndef GPUSLICE_OVERHEAD_H
#define GPUSLICE_OVERHEAD_H

#include "lock.h"
#include "process.h"

struct overheads {
	uint32_t measuring; /* loads waiting for the changes below to end */
	/* Changes (overhead_change_begin()) under way, plus those begun << 32. */
	uint64_t changes[LEDGER_DEVICES];
	struct lock lock; /* guards `loose`; held while measured bytes are charged */
	/* Per ledger device: charged bytes that no caller will release. */
	uint64_t loose[LEDGER_DEVICES];
	/* The part of `loose` estimated from the card's free memory: whole blocks. */
	uint64_t guessed[LEDGER_DEVICES];
	uint64_t not_before; /* CLOCK_MONOTONIC nanoseconds: no request before */
};

struct measured {
	uint64_t bytes;
	uint64_t changes; /* overheads.changes then; the figure is stale once it differs */
};

/* Measures the overhead by driver truth. Returns false, and leaves the device open, if that is
 * unavailable or other threads changed the charge during the request. `own` is true between the two
 * calls below. */
bool overhead_measure(int device, bool own, struct measured *measured);

/* Enclose a call with overhead charged before it, or released after it: a measurement by another
 * thread in between would be wrong. */
void overhead_change_begin(CUdevice ordinal);
void overhead_change_end(CUdevice ordinal);
/* Reports whether other changes are under way, between the two calls above. */
bool overhead_others_change(int device);

void overhead_leave_open(CUdevice ordinal);

/* Charge overhead that no call charged, and release what the driver has freed. No limit is checked,
 * since the driver has taken it already. */
void overhead_settle(CUdevice ordinal);
/* Settles if any loose overhead is charged. */
void overhead_settle_loose(CUdevice ordinal);

/* overhead_loosen() adds bytes that may exceed the driver's, so the next request settles.
 * overhead_tighten() releases up to `bytes` of them. */
void overhead_loosen(int device, uint64_t bytes);
void overhead_tighten(CUdevice ordinal, uint64_t bytes);

/* A call of the driver that may take overhead on the current device. */
struct watch {
	CUdevice ordinal;                     /* -1: no context, nothing can be taken */
	uint64_t left;                        /* the card's free bytes before the call */
	const struct ledger_account *account; /* the lane that counts the call, or NULL */
	struct ledger_uncharged loads;        /* when the call began, including it */
};

/* Called before the call. Driver truth, which takes hundreds of us, is requested only if the card's
 * free memory differs afterwards (8 us). If another process frees the same amount at that time,
 * only the enforcer's next sample reveals the bytes. */
struct watch watch_begin(void);

/* Called after the call: charges its overhead, *bytes, for the caller to release later. If other
 * loads ran too, the charge is loose, and *bytes is 0. False, with nothing charged, if it does not
 * fit: the caller undoes the call or charges it anyway. */
bool watch_end(const struct watch *watch, enum ledger_call call, uint64_t *bytes);

/* The same for a call that takes at most a block of 2 MiB, shared by several objects: its charge is
 * loose. Without driver truth, a change of the card's free memory counts as one block. */
bool watch_end_block(const struct watch *watch, enum ledger_call call);

/* Called after a call that may have freed such a block: releases its charge. */
void watch_end_less(const struct watch *watch, CUdevice ordinal);

/* Called instead if the call was not made or failed. */
void watch_drop(const struct watch *watch);

#endif
