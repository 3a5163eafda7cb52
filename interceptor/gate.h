/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of an elastic slice, which the enforcer may evict while no thread is behind the gate. A
 * process calls each function of the driver through a stub. The stub counts the call in the
 * process's lane, then reads whether the slice is evicted. If so, it uncounts the call, requests
 * the slice's return in the page, and waits. That needs no system call but futex(2): the process
 * may have lost its descriptors, or be in a sandbox.
 *
 * Other slices have no stubs.
 *
 * Not covered: functions of cuGetExportTable's tables, and functions without a hook that an object
 * calls by its own relocations before the interceptor finds it (scope.h). The driver blocks them
 * during the eviction, but they do not request its return.
 */
#ifndef GPUSLICE_GATE_H
#define GPUSLICE_GATE_H

#define GATE_STUBS 1024 /* functions of one process */
#define GATE_STUB_BYTES 16

/* Offsets in struct process of the fields of struct gate, for gate.S. */
#define GATE_CALLS 24
#define GATE_AWAY 32

/* Added to ledger_lane.calls by a call: one more made, one more under way. */
#define GATE_CALL 0x10001

#if !defined(__ASSEMBLER__)
#include <stdbool.h>
#include <stdint.h>

struct ledger_lane;
struct ledger;

/* The functions of a process that moves its memory itself, for the gate (mover.h). */
struct gate_mover {
	/* The process exits. Returns whether its memory is on the host, and stays there until
	 * resume(). */
	bool (*stay)(void);
	void (*resume)(void);
	/* Reports whether a function works without the memory. */
	bool (*passes)(const void *function);
	/* Brings the memory back, without the enforcer. */
	void (*bring_back)(void);
};

/* `calls` and `away` are the words that the stubs count in and read. NULL until the process is
 * attached, and if it does not count its calls. */
struct gate {
	uint64_t *calls;
	const uint64_t *away;
	const struct gate_mover *moves; /* NULL: the process does not move its memory itself */
};

/* Return whether the slice is elastic. Read at the first call, then cached. */
bool gate_is_elastic(void);

/* Return a function's stub, always the same. If none is left, return the function: the process then
 * counts as inside the driver until it exits, and is never moved. May be called anywhere. */
void *gate_of(void *function);

/* Return a function's stub, or NULL if it has none yet. */
void *gate_made(const void *function);

/* Return the function behind a stub. Return any other function as it is. */
void *gate_behind(void *function);

/* The driver's function without the gate; a function of ours run as one call behind it. */
#define BEHIND(name) ((__typeof__(&name))gate_behind((void *)DRIVER(name)))
#define THROUGH(function) ((__typeof__(&function))gate_of((void *)function))

/* Start to count calls, once attached. Call gate_begun() afterwards, with no lock held: it may call
 * the program's malloc(), which may be its caller. */
void gate_begin(struct ledger *ledger, struct ledger_lane *lane);
void gate_begun(void);

/* Enclose calls without a stub. gate_enter() returns false if the slice is evicted. */
bool gate_enter(void);
void gate_leave(void);

/* Return whether the process exits with its memory on the host. Memory that it frees stays
 * there. */
bool gate_is_leaving(void);
#endif

#endif
