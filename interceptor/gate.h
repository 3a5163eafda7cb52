/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of an elastic slice. The enforcer may evict the slice while no thread is behind the
 * gate. Each function of the driver that a process calls is a stub, which counts the call in the
 * process's lane, and then reads whether the slice is evicted. If it is, the stub takes the count
 * back, requests the slice's return in the page, and waits for it. The wait needs no system call
 * but futex(2): the process may have lost its descriptors, or be in a sandbox.
 *
 * A process of another slice has no stubs: its function pointers are the driver's.
 *
 * What does not pass: functions of cuGetExportTable's tables; names without a hook that an object
 * calls by its own relocations before it is met (scope.h). The driver makes them wait all the same
 * while the memory is away, but they do not bring it back.
 */
#ifndef GPUSLICE_GATE_H
#define GPUSLICE_GATE_H

#define GATE_STUBS 1024 /* functions of one process */
#define GATE_STUB_BYTES 16

/* struct gate, in struct process, for gate.S. */
#define GATE_CALLS 24
#define GATE_AWAY 32

/* One call more was made, and is under way: ledger_lane.calls. */
#define GATE_CALL 0x10001

#if !defined(__ASSEMBLER__)
#include <stdbool.h>
#include <stdint.h>

struct ledger_lane;
struct ledger;

/* Where the stubs count, and look: NULL until the process is attached, and in a process that does
 * not count. */
struct gate {
	uint64_t *calls;
	const uint64_t *away;
	bool moves; /* the process moves its memory itself: mover.h */
};

/* Whether this process is in an elastic slice. Found out at the first call, and remembered. */
bool gate_is_elastic(void);

/* The stub of one of the driver's functions: always the same. The function itself if there are no
 * more; then the process is counted as inside the driver for good, and so is never moved. May be
 * called anywhere. */
void *gate_of(void *function);

/* The stub that it has already, or NULL. */
void *gate_made(const void *function);

/* What is behind a stub; another function is itself. */
void *gate_behind(void *function);

/* The process is attached, and counts from now on. The second is for afterwards, when no lock is
 * held: it may call the program's malloc(), which may be what called us. */
void gate_begin(struct ledger *ledger, struct ledger_lane *lane);
void gate_begun(void);

/* Around calls that are made behind the gate, in stubs' place: false if the slice is away. */
bool gate_enter(void);
void gate_leave(void);

/* True while the process exits with its memory on the host: memory that it frees stays there. */
bool gate_is_leaving(void);
#endif

#endif
