/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of another process's checkpoint: lock it, take its memory off the cards, bring it back,
 * and unlock it.
 */
#ifndef FAKECUDA_MACHINE_CHECKPOINT_H
#define FAKECUDA_MACHINE_CHECKPOINT_H

#include "machine.h"

enum machine_phase { MACHINE_RUNNING, MACHINE_LOCKED, MACHINE_CHECKPOINTED, MACHINE_LOST };

enum machine_step {
	MACHINE_STEP_DONE,
	MACHINE_STEP_NO_PROCESS, /* no process with this pid, in the caller's namespace, has joined
	                          */
	MACHINE_STEP_WRONG,      /* it is in another phase */
	MACHINE_STEP_NO_MEMORY,  /* a card has too little free: the process is lost */
	MACHINE_STEP_LOST,       /* it was lost before */
	MACHINE_STEP_UNMOVABLE,  /* it has managed memory, which cannot be moved */
};

enum machine_step machine_phase(pid_t pid, enum machine_phase *phase);
/*
 * Moves a process to a neighbouring phase, in either direction. MACHINE_CHECKPOINTED takes the
 * process's bytes off the cards; on the way back all of them are taken again, or none. Shared
 * memory (hold.h) stays on the cards. A process that cannot return never runs again.
 */
enum machine_step machine_step(pid_t pid, enum machine_phase from, enum machine_phase to);

/*
 * Adds to this process's number of allocations that no checkpoint moves: managed memory, or opened
 * memory of another process. count is 1 or -1.
 */
void machine_add_unmovable(int count);

/* True if this process must wait for its unlock. */
bool machine_is_locked(void);

#endif
