/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of this process that a mover (mover.h) moves to host memory and back: its pieces
 * (piece.h), and the program's movable memory (movable.h). Each is wholly on the device or the host
 * at every moment.
 *
 * Host memory is kept for the next time: pinning takes several times as long as copying (arena.h).
 * So memory that has not changed since it was moved last is not copied (digest.h). The list is by
 * age: the memory that a program made first, such as a model's weights, has the same place each
 * time.
 *
 * All is called behind the gate, while that is shut.
 */
#ifndef GPUSLICE_SWAP_H
#define GPUSLICE_SWAP_H

#include "arena.h"
#include "block.h"
#include "digest.h"
#include "ledger.h"

struct swap {
	struct block_at *list;
	/* For `list[i]`: its offset in the arena, and whether the arena has its bytes. */
	struct swap_place {
		uint64_t offset;
		bool aside;
	} * place;
	size_t count, room;
	int device;     /* ledger device of the list */
	uint64_t bytes; /* of the list */
	uint64_t same;  /* bytes that the last move left in host memory as they were */
	struct arena arena;
	struct digests digests; /* of the blocks of the arena, and of what goes there */
};

/* Lists what can move. False without memory. */
bool swap_list(struct swap *swap);

/* Reports whether too little of the process's memory can move. */
bool swap_is_few(const struct swap *swap);

/* Moves all that is listed, except for what may stay, to host memory (`out`) or back, until one
 * fails or the request is no longer `want`. */
enum ledger_move_failure swap_move(struct swap *swap, bool out, const struct ledger_move *request,
                                   uint8_t want);

/* Returns the place of all that is listed, if none may stay. */
enum ledger_place swap_place(const struct swap *swap);

/* Frees host memory beyond what is used or may be kept. It may run while the gate is open. */
void swap_trim(struct swap *swap);

#endif
