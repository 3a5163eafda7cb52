/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of the slice that lend memory, each by its lane in the slice's ledger and that
 * lane's generation; 0 is nobody.
 *
 * A file that is lent carries its lender: the file's owner (F_SETOWN), which other processes can
 * read. A name that is lent, the 64 bytes of a handle, is noted in the ledger by the lender and by
 * each process that has it open.
 */
#ifndef GPUSLICE_LENDER_H
#define GPUSLICE_LENDER_H

#include "process.h"

uint64_t lender_self(const struct process *process);
/* Its lane is another process's by now, or nobody's; and the same, or it has ended. */
bool lender_has_left(const struct process *process, uint64_t lender);
bool lender_is_dead(const struct process *process, uint64_t lender);

/* Mark a file as lent by this process; return the lender of a file. */
void lender_own_file(int descriptor);
uint64_t lender_of_file(int descriptor);

/* Names are known by a number. */
uint64_t lender_name(const void *name);
enum lender_note { LENDER_LENDS = 1, LENDER_OPEN = 2 };
void lender_note(uint64_t name, enum lender_note note);
void lender_unnote(uint64_t name, enum lender_note note);
/* A process that lives and has noted that. */
uint64_t lender_who(const struct process *process, uint64_t name, enum lender_note note);
uint64_t lender_of_name(const void *name);

#endif
