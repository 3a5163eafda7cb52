/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOVER_PROGRAM_H
#define MOVER_PROGRAM_H

#include "driver.h"
#include "standin.h"

#define MIB (1ull << 20)

#define OF_PIECES (112 * MIB) /* bytes of a process that can be moved, in most cases */

struct mover_case {
	const char *name;
	void (*in_process)(void);
	void (*beside)(void);
};

/* The process's memory in most cases: pieces of mover.c, or the segment of mover_own.c. */
struct memory {
	uint64_t bytes; /* charged for it */
	void (*make)(void);
	void (*check)(void);
	void (*end)(void);
	void *(*use)(void *seed); /* in a thread, with other memory of that kind */
};
extern const struct memory segment_memory;

/* The last one has no name. */
extern const struct mover_case own_cases[];

/* Only the emulator knows what a process holds, and it wipes nothing in a forked child. */
extern bool emulated;

/* In the parent: the process stops at steps 1, 2 and so on until it may continue. */
extern pid_t child;
void await_step(int step);
void open_for(int step); /* opens the gate, and lets the process continue from there */
void open_until_the_end(void);
void set_stay(uint64_t bytes); /* bytes that may stay on the card */
enum ledger_place place(void);
enum ledger_move_failure move_to(enum ledger_place place);
void shut(void);      /* the gate, and wait until no call is inside */
long long used(void); /* bytes of the whole card, by NVML */
void move_again_and_again(void);
void move_to_a_full_card(void);
void move_and_kill(void);
void release(void);
void move_to_what_is_given(void);

extern CUcontext context;
void stop_at(int step);
void keep_and_check(void);
void go_on_alone(void);
void use_all(void);
void attach(void);
/* Has the simulated driver fail that call from now on; "" ends it. */
void fail_with(const char *call);

void write_marks(size_t piece, CUdeviceptr pointer, size_t bytes);
bool has_marks(size_t piece, CUdeviceptr pointer, size_t bytes);
uint64_t charged(void);

#endif
