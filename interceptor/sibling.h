/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_SIBLING_H
#define GPUSLICE_SIBLING_H

#include "ledger.h"

/* Reports whether a lane's process is dead, as seen from lane `me` of the same pid namespace; false
 * if unknown. */
bool sibling_dead(const struct ledger_lane *me, const struct ledger_lane *other);

/* Reports whether another process loads code, or makes a context at an estimated cost. */
bool sibling_loads(const struct ledger *ledger, uint32_t own);

/* Releases what dead processes of this slice hold on `device`, in case the enforcer is down. `own`
 * is the caller's lane. Other pid namespaces are left to the enforcer. Returns whether any bytes
 * were released. */
bool sibling_settle_dead(struct ledger *ledger, uint32_t device, uint32_t own);

#endif
