/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overhead: what the driver takes for this process beside what the program asked for. How much one
 * call takes shows only afterwards, in driver truth. Contexts, code and big graphs are charged
 * after the call that made them; where that is a look too many (a stream takes half a MiB), or
 * nobody could say at that moment, the device is left open: what it took is charged before the next
 * request there is granted.
 *
 * The driver is asked only if one of these calls was made: never on the way of an allocation alone.
 */
#ifndef GPUSLICE_OVERHEAD_H
#define GPUSLICE_OVERHEAD_H

#include "attach.h"
#include "lock.h"
#include "process.h"

struct overheads {
	uint32_t open;      /* bit per ledger device: something may have taken what is not charged */
	uint32_t streams;   /* that were made */
	uint64_t not_before; /* CLOCK_MONOTONIC milliseconds: the driver is not asked again before */
};

/* All overhead of this process on the device, by driver truth. False if nobody knows, or if other
 * threads charged or gave back while it was asked. */
bool overhead_measure(struct process *process, int device, uint64_t *bytes);

/* Leave the CUDA device open. */
void overhead_leave_open(CUdevice ordinal);

/* Whether it is: a look at one word. */
bool overhead_is_open(struct process *process, int device);

/* Charge what the driver took; nothing can be undone any more, so no limit is asked. */
void overhead_close(struct process *process, CUdevice ordinal, int device);

/* A call of the driver that may take overhead on the current device. */
struct watch {
	CUdevice ordinal; /* -1: nothing can be taken, for there is no context */
	uint64_t left;    /* free bytes of the card before the call */
};

/* Around it. If the card's free memory is the same before and after, it took nothing, and nobody
 * is asked. */
struct watch watch_begin(void);

/* After it: charge what it took. False if that does not fit: then the caller undoes the call, or,
 * if it cannot be undone, the charge is for him to make by overhead_close(). *bytes is what was
 * charged. */
bool watch_end(const struct watch *watch, enum attach_call call, uint64_t *bytes);

/* The same after a call that cannot be undone. */
void watch_end_anyway(const struct watch *watch, uint64_t *bytes);

/* A stream was made. */
void overhead_count_stream(void);

#endif
