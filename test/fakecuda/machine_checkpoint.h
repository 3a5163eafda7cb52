/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one process does to another for a checkpoint: it locks it, takes what it holds off the
 * cards, brings it back, and lets it go on.
 */
#ifndef FAKECUDA_MACHINE_CHECKPOINT_H
#define FAKECUDA_MACHINE_CHECKPOINT_H

#include "machine.h"

enum machine_phase { MACHINE_RUNNING, MACHINE_LOCKED, MACHINE_CHECKPOINTED, MACHINE_LOST };

enum machine_step {
	MACHINE_STEP_DONE,
	MACHINE_STEP_NO_PROCESS, /* none with this pid, as the caller sees it, has joined */
	MACHINE_STEP_WRONG,      /* it is in another phase */
	MACHINE_STEP_NO_MEMORY,  /* a card has less free than the process held there: it is lost */
	MACHINE_STEP_LOST,       /* it was lost before */
	MACHINE_STEP_UNMOVABLE,  /* it has managed memory, which cannot be sent away */
};

enum machine_step machine_phase(pid_t pid, enum machine_phase *phase);
/*
 * Between neighbours of the enumeration, one way or the other. On the way to MACHINE_CHECKPOINTED
 * the process's bytes leave the cards, on the way back they are taken again, all or none. What it
 * shares with others (hold.h) stays where it is. A process that cannot come back never runs again.
 */
enum machine_step machine_step(pid_t pid, enum machine_phase from, enum machine_phase to);

/*
 * This process has one allocation more that no checkpoint sends away, or with -1 one less: managed
 * memory, or memory of another process that it has opened.
 */
void machine_add_unmovable(int count);

/* Whether this process may not go on for now. */
bool machine_is_locked(void);

#endif
