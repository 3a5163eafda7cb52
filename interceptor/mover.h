/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that moves this process's pieces (piece.h), and what is like them of the program's own
 * making (movable.h), to host memory and back, as the enforcer wants it: see struct ledger_move.
 * Only in elastic slices that move themselves.
 *
 * It moves nothing unless the gate is shut and no call of the driver is under way: then no other
 * thread is in the driver, and none makes, ends or uses a piece. It goes towards what is wanted in
 * steps, and looks between them whether that is another by now. Where a step fails it stays where
 * it is, and says why: all of the memory is in one place or the other at every moment, and the
 * enforcer asks for the next step, or the one back.
 *
 * Host memory is taken when it is needed, and kept for the next time: to pin it takes several times
 * as long as to fill it. Whose it is: arena.h.
 */
#ifndef GPUSLICE_MOVER_H
#define GPUSLICE_MOVER_H

#include "block.h"
#include "ledger.h"

struct mover {
	struct ledger_move *move; /* NULL: this process does not move itself */
	struct lock lock;         /* held while it moves */
	uint32_t stopped;         /* it moves nothing for now */
	enum ledger_place is;     /* as told there, where others of the slice can write, too */
	/* Where each piece is: `list[i]` is on the device, or its bytes are in `arena` behind those
	 * of the ones before it. Valid from LEDGER_LOCKED until LEDGER_RUNNING. */
	struct block_at *list;
	bool *aside;
	size_t count, room;
	int device;           /* of the ledger: that of the list, if there is one */
	uint64_t bytes;       /* of the list */
	unsigned char *arena; /* host memory: addresses for so many bytes */
	uint64_t arena_bytes;
	uint64_t mapped; /* of which the first ones are there */
	uint64_t pinned; /* and of these the first ones pinned */
};

/* Begin it, in the process that has this lane, if the enforcer wants anything there: once it is
 * attached, with no lock held. */
void mover_begin(struct ledger_lane *lane);

/* True if all memory that can move is on the host, and none moves. */
bool mover_is_aside(void);
/* Move nothing from now on, or go on. */
void mover_stop(bool stop);

/* The slice is gone, and with it whoever would bring the memory back: wait until this process has
 * done so. */
void mover_return(void);

#endif
