/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_SIBLING_H
#define GPUSLICE_SIBLING_H

#include "ledger.h"

/* Whether the process of a lane has ended, as far as a process of the same pid namespace, whose
 * lane is `me`, can see; if it cannot, false. */
bool sibling_dead(const struct ledger_lane *me, const struct ledger_lane *other);

/* Return whether another process loads code, or makes a context at a guessed cost. */
bool sibling_loads(const struct ledger *ledger, uint32_t own);

/*
 * Give back what dead processes of this slice still hold on `device`, in place of the enforcer,
 * which may be down. `own` is the caller's lane. Only processes of the caller's pid namespace can
 * be seen to be dead; the others wait for the enforcer. Returns whether anything came back.
 */
bool sibling_settle_dead(struct ledger *ledger, uint32_t device, uint32_t own);

#endif
