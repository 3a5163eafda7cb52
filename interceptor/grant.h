/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What hooks ask before the driver takes memory. Where a request does not fit, room is made first:
 * what dead siblings hold is given back, and what this process's own driver pools keep free.
 */
#ifndef GPUSLICE_GRANT_H
#define GPUSLICE_GRANT_H

#include "attach.h"
#include "process.h"

enum grant_result {
	GRANTED,
	REFUSED,   /* it does not fit */
	UNATTACHED /* no ledger: the quota is unknown, so nothing is granted (fail closed) */
};

/* Charge `bytes` on the device `ordinal`; a refusal is counted and reported as `call`. */
enum grant_result grant(CUdevice ordinal, uint64_t bytes, enum kind kind, enum attach_call call);

/* The same for memory, for a caller that can do without: a refusal is neither counted nor told. */
enum grant_result grant_if_free(CUdevice ordinal, uint64_t bytes);

/* Whether the limit leaves anything: for what cannot be undone, and whose size nobody knows before.
 * If not, that is counted and reported as a refusal. */
bool grant_any_left(CUdevice ordinal, enum attach_call call);

/*
 * Around a call of the driver for an allocation that is charged only afterwards, and that charge:
 * what it takes is not hidden memory meanwhile. NULL if this process is not attached or its slice
 * has no quota on the device; then the call is not made. An allocation that succeeded is counted.
 */
const struct ledger_account *grant_begin_uncharged(CUdevice ordinal);
void grant_end_uncharged(const struct ledger_account *account, bool succeeded);

/* Count an allocation that succeeded. */
void grant_count(CUdevice ordinal);

#endif
