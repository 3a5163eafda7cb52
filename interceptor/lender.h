/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of the slice that lend memory, each by its lane and the lane's generation; 0 is
 * none.
 *
 * A lent file carries its lender as owner (F_SETOWN), which others can read. A lent name, the 64
 * bytes of a handle, is noted in the ledger by the lender and by each process that has it open.
 */
#ifndef GPUSLICE_LENDER_H
#define GPUSLICE_LENDER_H

#include "process.h"

uint64_t lender_self(const struct process *process);
/* Report whether the lender's lane is free or reassigned; the second also if the lender is dead. */
bool lender_has_left(const struct process *process, uint64_t lender);
bool lender_is_dead(const struct process *process, uint64_t lender);

/* Mark a file as lent by this process, and return the lender of a file. */
void lender_own_file(int descriptor);
uint64_t lender_of_file(int descriptor);

/* Returns the number under which a name is noted. */
uint64_t lender_name(const void *name);
enum lender_note { LENDER_LENDS = 1, LENDER_OPEN = 2 };
void lender_note(uint64_t name, enum lender_note note);
void lender_unnote(uint64_t name, enum lender_note note);
/* Returns a process that has this note. A process with the name open is alive. The death of a
 * lender is found by import_watch(): the kernel's answer would take longer than the rest of an
 * open. */
uint64_t lender_who(const struct process *process, uint64_t name, enum lender_note note);
uint64_t lender_of_name(const void *name);

#endif
