/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overhead: what the driver takes for this process beside what the program asked for. How much one
 * call takes shows only afterwards, in driver truth. Contexts, code and big graphs are charged
 * after the call that made them; where nobody could say at that moment, or what was charged before
 * it is no exact figure (streams), the device is left open: what it took is charged before the next
 * request there is granted.
 *
 * The driver is asked only if one of these calls was made: never on the way of an allocation alone.
 */
#ifndef GPUSLICE_OVERHEAD_H
#define GPUSLICE_OVERHEAD_H

#include "lock.h"
#include "process.h"

struct overheads {
	uint32_t measuring; /* loads that wait for the calls below to end, and measure then */
	/* Calls that charge, or give back, by themselves: under way, and begun << 32. */
	uint64_t changes[LEDGER_DEVICES];
	struct lock lock; /* guards `loose`; held while what was measured is charged */
	uint32_t open;    /* bit per ledger device: something may have taken what is not charged */
	/* Per ledger device, what was found without anybody who would give it back. */
	uint64_t loose[LEDGER_DEVICES];
	/* The part of `loose` that only the card's free memory showed: whole blocks. */
	uint64_t guessed[LEDGER_DEVICES];
	uint64_t
	    not_before; /* CLOCK_MONOTONIC milliseconds: the driver is not asked again before */
};

/* All overhead of this process on a device, at one time. */
struct measured {
	uint64_t bytes;
	uint64_t changes; /* overheads.changes then: another one since, and it is out of date */
};

/*
 * By driver truth. False if nobody knows, or if other threads charged or gave back while it was
 * asked: then the device is left open. `own` says that the caller is between the two below.
 */
bool overhead_measure(struct process *process, int device, bool own, struct measured *measured);

/* Around a call that makes or ends overhead whose charge is made before it, or given back after it:
 * what another thread measured in between would be wrong. */
void overhead_change_begin(CUdevice ordinal);
void overhead_change_end(CUdevice ordinal);
/* Whether, in between, another one is under way. */
bool overhead_others_change(struct process *process, int device);

/* How many loads are under way, and ended. */
struct ledger_uncharged overhead_loads(struct process *process, int device);

/* Leave the CUDA device open. */
void overhead_leave_open(CUdevice ordinal);

/* Whether it is: a look at one word. */
bool overhead_is_open(struct process *process, int device);

/* Charge what the driver took beside what others have charged, or give back what of that is no
 * more. Nothing can be undone any more, so no limit is asked. overhead_settle() does so now,
 * overhead_close() if the device is due. */
void overhead_settle(CUdevice ordinal);
/* The same, if anything was ever found so. */
void overhead_settle_loose(CUdevice ordinal);
void overhead_close(struct process *process, CUdevice ordinal, int device);

/* overhead_loosen() notes that more may be charged than the driver took, so that the next request
 * settles. overhead_tighten() gives back as much of `bytes` as is charged. */
void overhead_loosen(struct process *process, int device, uint64_t bytes);
void overhead_tighten(struct process *process, CUdevice ordinal, uint64_t bytes);

/* A call of the driver that may take overhead on the current device. */
struct watch {
	CUdevice ordinal; /* -1: nothing can be taken, for there is no context */
	uint64_t left;    /* free bytes of the card before it */
	const struct ledger_account *account; /* in whose lane the call is noted, or NULL */
	struct ledger_uncharged loads;        /* as they were when it began, itself included */
};

/* Around it. If the card's free memory is the same before and after it, it took nothing, and nobody
 * is asked: that costs 8 us, and an answer some hundred. (Who frees just as much at that moment
 * hides what it took from all but the enforcer's next look.) */
struct watch watch_begin(void);

/* After it: charge what it took, *bytes, which is the caller's to give back. False if that does not
 * fit: then nothing is charged, and the caller undoes the call, or charges it anyway. What was
 * measured while another thread loaded code, too, is charged, but nobody's. */
bool watch_end(const struct watch *watch, enum ledger_call call, uint64_t *bytes);

/* The same after a call that takes a block of 2 MiB, which several things share, or nothing: what
 * it took is nobody's alone. Where driver truth is silent and the card has other free memory than
 * before, that is a block. */
bool watch_end_block(const struct watch *watch, enum ledger_call call);

/* The same after a call that may have given such a block back: release its charge. */
void watch_end_less(const struct watch *watch, CUdevice ordinal);

/* Instead of that, if the call was not made, or failed: no load is under way for it any more. */
void watch_drop(const struct watch *watch);

#endif
