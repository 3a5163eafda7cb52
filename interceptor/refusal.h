/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a refusal: on stderr if GPUSLICE_DEBUG=1, and in the lane, where the enforcer looks.
 * The latter needs no system call, which a sandbox could forbid.
 */
#ifndef GPUSLICE_REFUSAL_H
#define GPUSLICE_REFUSAL_H

#include "process.h"

/*
 * A refusal in bytes, as of one instant. own + siblings + overhead is the device's `used`. As in
 * `gpuslice ps`, overhead is what the enforcer charged in its lane, and the contexts of all
 * processes; own and siblings are the rest. These and the limit exclude the charges of checkpointed
 * processes.
 */
struct refusal {
	uint64_t limit, own, siblings;
	struct ledger_refusal described;
};

/* Describe a refusal in the lane, and count it. The caller holds account_lock, so that the process
 * charges nothing between the look and the description. */
struct refusal refusal_count(struct process *process, uint32_t device, uint64_t bytes, bool by_pool,
                             enum ledger_call call);

/* Print it on stderr. errno may change. */
void refusal_say(const struct process *process, const struct refusal *refusal);

#endif
