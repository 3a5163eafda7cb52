/* SPDX-License-Identifier: Apache-2.0 */
/* Charges for memory that the driver is about to take. If a request does not fit, the process first
 * releases what exited siblings hold, and what its own driver pools keep free. */
#ifndef GPUSLICE_GRANT_H
#define GPUSLICE_GRANT_H

#include "process.h"
#include "upcall.h"

enum grant_result {
	GRANTED,
	REFUSED,   /* it does not fit */
	UNATTACHED /* no ledger: the quota is unknown, so nothing is granted (fail closed) */
};

/* Called before a grant on a device with open overhead. */
typedef void grant_settle_upcall(CUdevice ordinal, int device);
UPCALLS(grant_settle);

/* Called if a request does not fit: releases what this process need not hold. Returns whether there
 * was any. */
typedef bool grant_room_upcall(CUdevice ordinal);
UPCALLS(grant_room);

/* Charge `bytes` on a device. A refusal is counted, and reported as `call`. */
enum grant_result grant(CUdevice ordinal, uint64_t bytes, enum kind kind, enum ledger_call call);

/* Return the error of a call without a grant. If no context is current, or there is no such device,
 * it is the driver's own, which the call would return anyway. */
CUresult grant_error(void);
CUresult grant_error_on(CUdevice ordinal);

/* Charge an optional request: a refusal is neither counted nor reported. */
enum grant_result grant_if_free(CUdevice ordinal, uint64_t bytes, enum kind kind);

/* Return whether any byte is left, before a call of unknown size that cannot be undone. If not,
 * count and report a refusal. */
bool grant_any_left(CUdevice ordinal, enum ledger_call call);

/*
 * Enclose an allocation that is charged after the driver's call: in between, its bytes are not
 * taken for hidden memory. The first returns NULL if the process is not attached, or its slice has
 * no quota on the device; the call is then not made. The second counts an allocation that
 * succeeded.
 */
const struct ledger_account *grant_begin_uncharged(CUdevice ordinal);
void grant_end_uncharged(const struct ledger_account *account, bool succeeded);

/* Afterwards, settle the overhead that other calls left open. */
void grant_settle_after(CUdevice ordinal);

/* The same in the usual case: the first thread of an attached process that sees one device. In
 * other cases, or if the case is not known yet, return false and change nothing. */
static inline bool grant_begin_at_once(void)
{
	uint64_t *word = __atomic_load_n(&process_seen()->at_once.uncharged, __ATOMIC_ACQUIRE);

	if (__builtin_expect(!word || !process_is_known_first_thread(), 0))
		return false;
	__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	return true;
}

/* ledger_count() returned `full`. */
__attribute__((cold, noinline)) void grant_retire_allocations(CUdevice ordinal, uint32_t *full);

static inline void grant_end_at_once(bool succeeded)
{
	const struct at_once *at = &process_seen()->at_once;
	uint64_t *word = __atomic_load_n(&at->uncharged, __ATOMIC_ACQUIRE);
	uint32_t *full;

	if (__builtin_expect(!word, 0))
		return; /* a child that a signal handler has just forked */
	full = succeeded ? ledger_count(at->allocations, true) : NULL;
	if (__builtin_expect(full != NULL, 0))
		grant_retire_allocations(0, full);
	__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + LEDGER_CALL_ENDED,
	                 __ATOMIC_RELEASE);
}

void grant_count(CUdevice ordinal);

#endif
