/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hooks ask before the driver takes memory. Where a request does not fit, room is made first:
 * what dead siblings hold is given back, and what this process's own driver pools keep free.
 */
#ifndef GPUSLICE_GRANT_H
#define GPUSLICE_GRANT_H

#include "process.h"

enum grant_result {
	GRANTED,
	REFUSED,   /* it does not fit */
	UNATTACHED /* no ledger: the quota is unknown, so nothing is granted (fail closed) */
};

/* Charge `bytes` on the device `ordinal`; a refusal is counted and reported as `call`. */
enum grant_result grant(CUdevice ordinal, uint64_t bytes, enum kind kind, enum ledger_call call);

/* Return the error of a call that was not granted its memory: the driver's own, if it would refuse
 * the call anyway, because no context is current, or because there is no such device. */
CUresult grant_error(void);
CUresult grant_error_on(CUdevice ordinal);

/* As grant(), for a caller that can do without: a refusal is neither counted nor reported. */
enum grant_result grant_if_free(CUdevice ordinal, uint64_t bytes, enum kind kind);

/* Whether the limit leaves anything: for what cannot be undone, and whose size nobody knows before.
 * If not, that is counted and reported as a refusal. */
bool grant_any_left(CUdevice ordinal, enum ledger_call call);

/*
 * Around a call of the driver for an allocation that is charged only afterwards, and that charge:
 * what it takes is not hidden memory meanwhile. NULL if this process is not attached or its slice
 * has no quota on the device; then the call is not made. An allocation that succeeded is counted.
 */
const struct ledger_account *grant_begin_uncharged(CUdevice ordinal);
void grant_end_uncharged(const struct ledger_account *account, bool succeeded);

/* After it, if it took a block: charge what other calls took, which could not be told from that. */
void grant_settle(CUdevice ordinal);

/*
 * The same in the usual case, and nothing that it does not need: this is the first thread of an
 * attached process that sees one device. False if it is not that, or not known to be yet: then
 * nothing is changed, and those above are asked.
 */
static inline bool grant_begin_at_once(void)
{
	uint64_t *word = __atomic_load_n(&process_seen()->at_once.uncharged, __ATOMIC_ACQUIRE);

	if (__builtin_expect(!word || !process_is_known_first_thread(), 0))
		return false;
	__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
	return true;
}

__attribute__((cold, noinline)) void grant_retire_allocations(uint32_t *full);

static inline void grant_end_at_once(bool succeeded)
{
	const struct at_once *at = &process_seen()->at_once;
	uint64_t *word = __atomic_load_n(&at->uncharged, __ATOMIC_ACQUIRE);
	uint32_t *full;

	if (__builtin_expect(!word, 0))
		return; /* a child that a signal's handler forked meanwhile */
	full = succeeded ? ledger_count(at->allocations, true) : NULL;
	if (__builtin_expect(full != NULL, 0))
		grant_retire_allocations(full);
	__atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + LEDGER_CALL_ENDED,
	                 __ATOMIC_RELEASE);
}

/* Count an allocation that succeeded. */
void grant_count(CUdevice ordinal);

#endif
