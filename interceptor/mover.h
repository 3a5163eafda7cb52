/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that moves this process's pieces (piece.h) and the program's movable memory (movable.h)
 * to host memory and back, as the enforcer requests in struct ledger_move. Only in elastic slices
 * with processes that move themselves.
 *
 * It moves memory only while the gate is shut and no call is under way: then no other thread makes,
 * ends or uses a piece. It rereads the request between its steps, and stops and reports at a
 * failure. Each piece is wholly on the device or the host at every moment.
 *
 * Host memory is kept for the next time: pinning takes several times as long as copying (arena.h).
 * So memory that has not changed since it was moved last is not copied (digest.h). The list is by
 * age: the memory that a program made first, such as a model's weights, has the same place each
 * time.
 */
#ifndef GPUSLICE_MOVER_H
#define GPUSLICE_MOVER_H

#include "block.h"
#include "digest.h"
#include "ledger.h"

struct mover {
	struct ledger_move *move; /* NULL: this process does not move itself */
	struct lock lock;         /* held while it moves */
	uint32_t stopped;         /* 1: moves nothing for now */
	enum ledger_place is;     /* as in `move`, which other processes can overwrite */
	/* `list[i]` is on the device, or its bytes are in `arena`, after those of earlier ones.
	 * Valid from LEDGER_LOCKED until LEDGER_RUNNING. */
	struct block_at *list;
	bool *aside;
	size_t count, room;
	int device;           /* ledger device of the list */
	uint64_t bytes;       /* of the list */
	unsigned char *arena; /* addresses for host memory */
	uint64_t arena_bytes;
	uint64_t mapped;        /* bytes of it that are backed, from its start */
	uint64_t pinned;        /* bytes of those that are pinned */
	struct digests digests; /* of the blocks of the arena, and of what goes there */
};

#endif
