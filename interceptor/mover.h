/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that moves this process's memory (swap.h) to host memory and back, as the enforcer
 * requests in struct ledger_move. Only in elastic slices with processes that move themselves.
 *
 * It moves memory only while the gate is shut and no call is under way: then no other thread makes,
 * ends or uses a piece. It rereads the request between its steps, and stops and reports at a
 * failure.
 */
#ifndef GPUSLICE_MOVER_H
#define GPUSLICE_MOVER_H

#include "ledger.h"
#include "lock.h"
#include "swap.h"

struct mover {
	struct ledger_move *move; /* NULL: this process does not move itself */
	struct lock lock;         /* held while it moves */
	uint32_t stopped;         /* 1: moves nothing for now */
	enum ledger_place is;     /* as in `move`, which other processes can overwrite */
	struct swap swap;         /* valid from LEDGER_LOCKED until LEDGER_RUNNING */
};

#endif
