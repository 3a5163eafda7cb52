/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include "attach_client.h"
#include "ledger.h"
#include "monotonic.h"
#include "process.h"
#include "quiet.h"
#include "say.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#define CALL_MADE (GATE_CALL - 1)
#define CALL_UNDER_WAY 1

/* Seconds between two requests for the slice's return: the enforcer may have been restarted. */
#define REQUEST_SECONDS 1

/* Seconds of a wait before the process says so, and between two such lines: a program that takes
 * turns with others waits often. */
#define SAY_AFTER 2
#define SAY_AGAIN 60

static_assert(offsetof(struct process, gate) + offsetof(struct gate, calls) == GATE_CALLS,
              "gate.S");
static_assert(offsetof(struct process, gate) + offsetof(struct gate, away) == GATE_AWAY, "gate.S");

/* Defined in gate.S. */
extern __attribute__((visibility("hidden"))) char gate_stubs[GATE_STUBS][GATE_STUB_BYTES];

/* Stubs are used in order, and never freed. */
extern __attribute__((visibility("hidden"))) void *gate_real[GATE_STUBS];
void *gate_real[GATE_STUBS];

static bool used_up; /* a function has no stub; inherited by a forked child */

bool gate_is_elastic(void)
{
	static unsigned char known; /* 0 not read yet, 1 no, 2 yes; inherited by a forked child */
	unsigned char now = __atomic_load_n(&known, __ATOMIC_RELAXED), none = 0;

	if (!now) {
		now = attach_is_elastic() ? 2 : 1;
		/* The first of several threads decides for all. */
		if (!__atomic_compare_exchange_n(&known, &none, now, false, __ATOMIC_RELAXED,
		                                 __ATOMIC_RELAXED))
			now = none;
	}
	return now == 2;
}

static uint64_t *calls_now(void)
{
	return __atomic_load_n(&process_seen()->gate.calls, __ATOMIC_ACQUIRE);
}

static __attribute__((cold)) void never_evict(void)
{
	uint64_t *calls = calls_now();

	__atomic_store_n(&used_up, true, __ATOMIC_SEQ_CST);
	if (calls)
		__atomic_fetch_add(calls, CALL_UNDER_WAY, __ATOMIC_SEQ_CST);
}

void *gate_of(void *function)
{
	for (size_t i = 0; i < GATE_STUBS; i++) {
		void *there = __atomic_load_n(&gate_real[i], __ATOMIC_ACQUIRE);

		/* If another thread took the place first, `there` is that thread's function. */
		if (there == function ||
		    (!there && __atomic_compare_exchange_n(&gate_real[i], &there, function, false,
		                                           __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) ||
		    there == function)
			return gate_stubs[i];
	}
	never_evict();
	return function;
}

void *gate_made(const void *function)
{
	for (size_t i = 0; i < GATE_STUBS; i++) {
		const void *there = __atomic_load_n(&gate_real[i], __ATOMIC_ACQUIRE);

		if (!there)
			return NULL;
		if (there == function)
			return gate_stubs[i];
	}
	return NULL;
}

void *gate_behind(void *function)
{
	uintptr_t offset = (uintptr_t)function - (uintptr_t)gate_stubs;

	return offset < sizeof(gate_stubs)
	           ? __atomic_load_n(&gate_real[offset / GATE_STUB_BYTES], __ATOMIC_ACQUIRE)
	           : function;
}

/* Count in this process's lane only: a signal handler can fork in the middle of a call. */
static void count(uint64_t *calls, uint64_t more)
{
	if (calls && calls_now() == calls)
		__atomic_fetch_add(calls, more, __ATOMIC_SEQ_CST);
}

static bool is_away(const uint64_t *away)
{
	return __atomic_load_n(away, __ATOMIC_SEQ_CST) != 0; /* not before the count is visible */
}

bool gate_enter(void)
{
	uint64_t *calls = calls_now();

	count(calls, GATE_CALL);
	if (calls && is_away(process_seen()->gate.away)) {
		count(calls, -(uint64_t)CALL_UNDER_WAY);
		return false;
	}
	return true;
}

void gate_leave(void)
{
	count(calls_now(), -(uint64_t)CALL_UNDER_WAY);
}

/* Request the slice's return, and wait for REQUEST_SECONDS, or until a signal. */
static void await_return(struct ledger *ledger)
{
	struct timespec patience = {.tv_sec = REQUEST_SECONDS};

	__atomic_fetch_add(&ledger->wishes, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &ledger->wishes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	syscall(SYS_futex, &ledger->away, FUTEX_WAIT, 1, &patience, NULL, 0);
}

/* Says that calls have waited since `begun`, if they have for long. One of several threads does. */
static bool say_waits(uint64_t begun)
{
	static uint64_t said; /* when it was said last */
	uint64_t now = monotonic_seconds(), before = __atomic_load_n(&said, __ATOMIC_RELAXED);

	if (now - begun < SAY_AFTER || (before && now - before < SAY_AGAIN) ||
	    !__atomic_compare_exchange_n(&said, &before, now, false, __ATOMIC_RELAXED,
	                                 __ATOMIC_RELAXED))
		return false;
	say_line(
	    "CUDA calls of process %d wait until the card has room for its slice's memory, which "
	    "is "
	    "in host memory: `gpuslice ps` names the slice, `gpuslice explain` what it waits for",
	    (int)getpid());
	return true;
}

/* Set while the process exits with its memory on the host. */
static uint32_t leaving;

bool gate_is_leaving(void)
{
	return __atomic_load_n(&leaving, __ATOMIC_ACQUIRE);
}

static const struct gate_mover *mover(void)
{
	return __atomic_load_n(&process_seen()->gate.moves, __ATOMIC_ACQUIRE);
}

/* Called by the stubs, for a call that they counted while the slice is evicted. On return it is
 * counted. */
__attribute__((visibility("hidden"))) void gate_wait(uint64_t *calls, const uint64_t *away,
                                                     const void *function);
void gate_wait(uint64_t *calls, const uint64_t *away, const void *function)
{
	struct ledger *ledger = process_seen()->ledger;
	uint64_t begun = monotonic_seconds();
	bool gone, told = false;

	if (!ledger)
		return; /* a child that a signal handler has just forked */
	if (mover() && gate_is_leaving() && mover()->passes(function)) {
		count(calls, -(uint64_t)CALL_MADE); /* it requests no return */
		return;
	}
	QUIETLY;
	if (__atomic_exchange_n(&leaving, 0, __ATOMIC_ACQ_REL) && mover())
		mover()->resume();
	do {
		count(calls, -(uint64_t)CALL_UNDER_WAY);
		gone = __atomic_load_n(&ledger->flags, __ATOMIC_ACQUIRE) & LEDGER_CLOSED;
		if (!gone)
			await_return(ledger);
		else if (mover())
			mover()->bring_back();
		count(calls, GATE_CALL);
		told = told || say_waits(begun);
	} while (!gone && is_away(away));
	if (told)
		say_line(
		    "the memory of process %d is back on the card after %u s, and its CUDA calls "
		    "go on",
		    (int)getpid(), (unsigned)(monotonic_seconds() - begun));
}

/* From the C library. (Its atexit() is not in the shared object.) */
int run_at_exit(void (*function)(void *), void *argument, void *object) __asm__("__cxa_atexit");

/*
 * The driver's own work at exit passes no gate. After the driver's checkpoint it would wait for its
 * memory, and no process would request the return. After this function, exit handlers run that the
 * driver registered before the process attached; the process is not moved from here on. If the
 * process moved its memory itself, it does not need it back.
 */
static void exit_begins(void *unused)
{
	struct gate *gate = &process_seen()->gate;
	uint64_t *calls = calls_now();

	(void)unused;
	if (!calls)
		return;
	count(calls, GATE_CALL);
	if (!is_away(gate->away))
		return;
	if (mover() && mover()->stay())
		__atomic_store_n(&leaving, 1, __ATOMIC_RELEASE);
	else
		gate_wait(calls, gate->away, NULL);
}

void gate_begin(struct ledger *ledger, struct ledger_lane *lane)
{
	struct gate *gate = &process_seen()->gate;

	if (!gate_is_elastic())
		return;
	/* If a fork does not wipe this memory, the child would count in its parent's lane. */
	__atomic_store_n(&lane->calls, at_hand.wiped ? CALL_MADE : 0, __ATOMIC_SEQ_CST);
	if (!at_hand.wiped)
		return;
	__atomic_store_n(&gate->away, &ledger->away, __ATOMIC_RELAXED);
	__atomic_store_n(&gate->calls, &lane->calls, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&used_up, __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&lane->calls, CALL_UNDER_WAY, __ATOMIC_SEQ_CST);
}

void gate_begun(void)
{
	static bool registered; /* inherited by a forked child */

	if (calls_now() && !__atomic_exchange_n(&registered, true, __ATOMIC_RELAXED))
		(void)run_at_exit(exit_begins, NULL, NULL);
}

/* Called by the unwinder, if a cancellation or a callback's exception ends a call of the driver. A
 * call left by longjmp() stays counted. */
__attribute__((visibility("hidden"))) _Unwind_Reason_Code
gate_left(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
          struct _Unwind_Exception *exception, struct _Unwind_Context *context);
_Unwind_Reason_Code gate_left(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                              struct _Unwind_Exception *exception, struct _Unwind_Context *context)
{
	(void)version;
	(void)class;
	(void)exception;
	(void)context;
	if (actions & _UA_CLEANUP_PHASE)
		count(calls_now(), -(uint64_t)CALL_UNDER_WAY);
	return _URC_CONTINUE_UNWIND;
}
