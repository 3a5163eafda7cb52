/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of a refusal: on stderr if GPUSLICE_DEBUG=1, and in the lane, where the enforcer looks.
 * The latter needs no system call, which a sandbox could forbid.
 */
#ifndef GPUSLICE_REFUSAL_H
#define GPUSLICE_REFUSAL_H

#include "process.h"

/* Count and describe a refusal. errno may change. */
void refusal_report(struct process *process, uint32_t device, uint64_t bytes, bool by_pool,
                    enum ledger_call call);

#endif
