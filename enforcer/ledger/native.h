/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The enforcer's own operations on a page, in addition to ledger.h: its writes (identity of a
 * lane, a new device, the flags) in the order that processes rely on, and sums over all lanes,
 * which from Go would cost one call per lane.
 */
#ifndef GPUSLICE_ENFORCER_NATIVE_H
#define GPUSLICE_ENFORCER_NATIVE_H

#include "../../interceptor/attach.h"
#include "../../interceptor/ledger.h"

/* The owner of a lane, from the kernel. */
struct native_owner {
	uint32_t pid, ns_pid;
	uint64_t start, pid_ns;
};

struct native_sums {
	uint64_t used; /* from the device word */
	uint64_t
	    held; /* of all live lanes; equals `used` if `quiet`, unless the page was overwritten */
	uint64_t context;               /* part of `held`: contexts */
	uint64_t allocations, refusals; /* in total, of live and dead processes */
	bool quiet;                     /* the word did not change during the sum */
};

/* Assign a settled lane to `owner`, except for the last step, native_live(). */
enum ledger_result native_assign(struct ledger *ledger, uint32_t lane,
                                 const struct native_owner *owner);
void native_live(struct ledger *ledger, uint32_t lane);
void native_suspended(struct ledger *ledger, uint32_t lane);

/* Settle a dead lane on the first `devices` devices. bytes[i] is set to the bytes that this call
 * released. */
enum ledger_result native_settle(struct ledger *ledger, uint32_t lane, uint64_t generation,
                                 uint32_t devices, uint64_t *bytes);
void native_free(struct ledger *ledger, uint32_t lane);

/* Write the device of the account, and show it to the slice's processes. */
enum ledger_result native_device(struct ledger_account *enforcer, const uint8_t *uuid,
                                 uint64_t limit, uint64_t quota, uint64_t total,
                                 uint64_t context_bytes);
void native_context_bytes(struct ledger *ledger, uint32_t device, uint64_t bytes);
void native_close(struct ledger *ledger);

/* Set where a lane's memory is wanted, with a new number, and wake its owner. Returns the new
 * ledger_move.want. */
uint8_t native_want(struct ledger *ledger, uint32_t lane, enum ledger_place place);

/* Sum over the lanes with live[i] != 0. `lanes` is the length of `live`, at most LEDGER_LANES. */
struct native_sums native_sums(const struct ledger *ledger, uint32_t device, const uint8_t *live,
                               uint32_t lanes);

/* Bytes of a live lane, or 0 if a sibling has settled it. */
uint64_t native_held(const struct ledger *ledger, uint32_t device, uint32_t lane);

#endif
