/* SPDX-License-Identifier: Apache-2.0 */
/* Plays the enforcer, below GPUSLICE_DIR, for a process of an elastic slice and its parent. */
#ifndef STANDIN_H
#define STANDIN_H

#include "attach.h"
#include "ledger.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define UNDER_WAY 0xffffull

extern struct ledger *ledger; /* of one device with a UUID of sevens */
extern int listening;
extern int wrong;

/* Shared by both processes. */
extern struct control {
	int attach_status; /* the answer to attach requests */
	int brings_back;   /* a request for the return is enough */
	int attached;
	int ready;  /* the process waits for the parent */
	int moving; /* no call may be inside the driver */
	int over;
	int moves; /* the processes are to move their memory themselves */
	/* Host memory to give, in ATTACH_HOST_STEPs. At 0 each process uses its own, below 0
	 * requests get no answer. */
	int host_steps;
	int host_asked;
} * control;
extern int host_file; /* with the given memory; -1: none */

#define EXPECT(what)                                                                               \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			printf("line %d: not so: %s\n", __LINE__, #what);                          \
			wrong = 1;                                                                 \
		}                                                                                  \
	} while (0)

static inline int get(const int *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void set(int *word, int value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline void wake_gate(void)
{
	syscall(SYS_futex, &ledger->away, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void set_away(uint64_t away)
{
	__atomic_store_n(&ledger->away, away, __ATOMIC_SEQ_CST);
	wake_gate();
}

static inline void set_closed(bool closed)
{
	__atomic_store_n(&ledger->flags, closed ? LEDGER_CLOSED : 0, __ATOMIC_SEQ_CST);
	wake_gate();
}

static inline int wishes(void)
{
	return (int)__atomic_load_n(&ledger->wishes, __ATOMIC_SEQ_CST);
}

static inline uint64_t calls_of(unsigned int lane)
{
	return __atomic_load_n(&ledger->lane[lane].calls, __ATOMIC_SEQ_CST);
}

static inline uint64_t made(void)
{
	return calls_of(1) >> 16;
}

static inline uint64_t under_way(void)
{
	return calls_of(1) & UNDER_WAY;
}

static inline void pause_ms(int ms)
{
	usleep((useconds_t)ms * 1000);
}

#define WAIT_UNTIL(what)                                                                           \
	do {                                                                                       \
		bool so_ = false;                                                                  \
                                                                                                   \
		for (int tries_ = 0; !so_ && tries_ < 20000; tries_++) {                           \
			so_ = (what);                                                              \
			if (!so_)                                                                  \
				pause_ms(1);                                                       \
		}                                                                                  \
		EXPECT(so_ &&#what);                                                               \
	} while (0)

/* Create the ledger, of `quota` bytes, and the rest, and listen. */
void standin_begin(uint64_t quota, bool elastic);
void standin_listen(void);
/* Start the process, a child that exits with whether anything was wrong. A thread of the caller
 * answers its requests. */
pid_t standin_process(void (*in_process)(void));

#endif
