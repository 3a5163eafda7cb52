/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases of mover.c, mover_own.c and mover_given.c share. */
#ifndef MOVER_PROGRAM_H
#define MOVER_PROGRAM_H

#include "driver.h"
#include "standin.h"

#define MIB (1ull << 20)

#define OF_PIECES (112 * MIB) /* bytes of a process that can be moved, in most cases */

struct mover_case {
	const char *name;
	void (*in_process)(void);
	void (*beside)(pid_t child);
};

/* Ends with one without a name. */
extern const struct mover_case own_cases[];

/* What the emulator keeps of a process's memory it knows alone, and it wipes none in a forked
 * child. */
extern bool emulated;

/* In the parent. */
enum ledger_place place(void);
enum ledger_move_failure move_to(enum ledger_place place);
void shut(void);      /* the gate, and nobody is behind it */
long long used(void); /* of the whole card, by NVML */
void move_again_and_again(pid_t child);
void move_to_a_full_card(pid_t child);
void move_and_kill(pid_t child);
void release(pid_t child);
void move_to_what_is_given(pid_t child);

/* In the process. */
extern CUcontext context;
void attach(void);
void write_marks(size_t piece, CUdeviceptr pointer, size_t bytes);
bool has_marks(size_t piece, CUdeviceptr pointer, size_t bytes);
uint64_t charged(void);

#endif
