/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the enforcer does to a page beside the functions of ledger.h: the writes that are its own
 * (identity of a lane, a new device, the flags), with the order that the others rely on, and sums
 * over all lanes, which would cost one call per lane from Go.
 */
#ifndef GPUSLICE_ENFORCER_NATIVE_H
#define GPUSLICE_ENFORCER_NATIVE_H

#include "../../interceptor/attach.h"
#include "../../interceptor/ledger.h"

/* A lane's owner, as the enforcer saw it. */
struct native_owner {
	uint32_t pid, ns_pid;
	uint64_t start, pid_ns;
};

struct native_sums {
	uint64_t used;    /* the word */
	uint64_t held;    /* all live lanes; equals `used` if `quiet` and the page is honest */
	uint64_t context; /* of that, contexts */
	uint64_t allocations, refusals; /* ever, of the living and the dead */
	bool quiet;                     /* the word did not change while the lanes were summed */
};

/* Give a settled lane to `owner`: everything but the last step, native_live(). */
enum ledger_result native_assign(struct ledger *ledger, uint32_t lane,
                                 const struct native_owner *owner);
void native_live(struct ledger *ledger, uint32_t lane);
void native_suspended(struct ledger *ledger, uint32_t lane);

/* Settle a dead lane on the first `devices` devices. bytes[i] is what this call gave back. */
enum ledger_result native_settle(struct ledger *ledger, uint32_t lane, uint64_t generation,
                                 uint32_t devices, uint64_t *bytes);
void native_free(struct ledger *ledger, uint32_t lane);

/* Fill in device `device`, and show it to the slice's processes. */
enum ledger_result native_device(struct ledger_account *enforcer, const uint8_t *uuid,
                                 uint64_t limit, uint64_t quota, uint64_t total,
                                 uint64_t context_bytes);
void native_context_bytes(struct ledger *ledger, uint32_t device, uint64_t bytes);
void native_close(struct ledger *ledger);

/* Tell a lane's owner where its memory is wanted, as none was told before. Returns the byte of
 * ledger_move that says so. */
uint8_t native_want(struct ledger *ledger, uint32_t lane, enum ledger_place place);

/* live[i] != 0: what lane i holds is counted. `lanes` is the length of `live`; LEDGER_LANES at
 * most. */
struct native_sums native_sums(const struct ledger *ledger, uint32_t device, const uint8_t *live,
                               uint32_t lanes);

/* What a live lane holds; 0 if a sibling has settled it already. */
uint64_t native_held(const struct ledger *ledger, uint32_t device, uint32_t lane);

#endif
