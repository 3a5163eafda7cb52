/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is said of a refusal: to a person who asked for it (GPUSLICE_DEBUG=1, each of them), and to
 * the enforcer (some; the lane's count has all). Neither delays the program.
 */
#ifndef GPUSLICE_REFUSAL_H
#define GPUSLICE_REFUSAL_H

#include "attach.h"
#include "process.h"

/* How many refusals a process tells the enforcer within a second. A program that asks again and
 * again would else do little but that; the enforcer finds the others in the lane's count. */
#define REFUSALS_TOLD 4

/*
 * What stood against a request, in bytes. own + siblings + overhead is what was charged (the
 * device's `used`). As in `gpuslice ps`, overhead is what the enforcer charged in its lane and the
 * contexts of all processes, this one's too; own and siblings are the rest. What checkpointed
 * processes are charged for is neither in these nor in the limit.
 */
struct refusal {
	bool say, tell; /* to whom; if to nobody, the rest is 0 */
	uint64_t bytes; /* asked for */
	uint64_t limit, own, siblings, overhead;
	bool by_pool; /* it was the pool's limit; siblings are all processes of its members */
};

/* Look, with account_lock held: then what this process holds stands still. */
struct refusal refusal_look(struct process *process, uint32_t device, uint64_t bytes, bool by_pool);

/* Say and tell what was seen. errno may change. */
void refusal_report(struct process *process, uint32_t device, const struct refusal *refusal,
                    enum attach_call call);

#endif
