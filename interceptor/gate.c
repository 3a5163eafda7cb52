/* SPDX-License-Identifier: Apache-2.0 */
#include "gate.h"

#include "attach_client.h"
#include "entry.h"
#include "mover.h"
#include "piece.h"
#include "process.h"
#include "quiet.h"
#include "say.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unwind.h>

#define CALL_MADE (GATE_CALL - 1)
#define CALL_UNDER_WAY 1

/* Nanoseconds: after what was no answer; and after "it is back" that the page does not confirm. */
#define PAUSE 100000000
#define SHORT_PAUSE 1000000

static_assert(offsetof(struct process, gate) + offsetof(struct gate, calls) == GATE_CALLS,
              "gate.S");
static_assert(offsetof(struct process, gate) + offsetof(struct gate, away) == GATE_AWAY, "gate.S");

/* Of gate.S. */
extern __attribute__((visibility("hidden"))) char gate_stubs[GATE_STUBS][GATE_STUB_BYTES];

/* The function of each stub. They are taken in order, and kept. */
extern __attribute__((visibility("hidden"))) void *gate_real[GATE_STUBS];
void *gate_real[GATE_STUBS];

static bool used_up; /* a function has no stub. A forked child inherits it. */

bool gate_is_elastic(void)
{
	static unsigned char known; /* 0 not yet, 1 no, 2 yes. A forked child inherits it. */
	unsigned char now = __atomic_load_n(&known, __ATOMIC_RELAXED), none = 0;

	if (!now) {
		now = attach_is_elastic() ? 2 : 1;
		/* Of several threads that ask the first decides for all. */
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

static __attribute__((cold)) void stay_for_good(void)
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

		/* A thread that comes too late for the place finds in `there` whose it is. */
		if (there == function ||
		    (!there && __atomic_compare_exchange_n(&gate_real[i], &there, function, false,
		                                           __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) ||
		    there == function)
			return gate_stubs[i];
	}
	stay_for_good();
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

/* A signal's handler cuts it short, which is no harm. */
static void pause_for(long nanoseconds)
{
	struct timespec pause = {.tv_nsec = nanoseconds};

	nanosleep(&pause, NULL);
}

enum gate_answer gate_ask(void)
{
	struct attach_request request = {.op = ATTACH_OP_RETURN};
	struct attach_reply reply = {0};

	if (ask_enforcer(&request, &reply, NULL, NULL) != ASK_ANSWERED) {
		int error = errno;

		say_once(process_get(), ONCE_AWAY,
		         "the slice is evicted, and the enforcer's socket cannot be reached (%s): "
		         "waiting until the memory is back",
		         strerror(error));
		pause_for(PAUSE);
		return GATE_AWAY_STILL;
	}
	switch (reply.status) {
	case ATTACH_OK:
		return GATE_BACK;
	case ATTACH_CLOSED:
	case ATTACH_NOT_MEMBER:
	case ATTACH_HIDDEN:
	case ATTACH_MALFORMED: /* an older enforcer */
		return GATE_GONE;
	case ATTACH_AWAY:
		return GATE_AWAY_STILL;
	default:
		pause_for(PAUSE);
		return GATE_AWAY_STILL;
	}
}

/* In a forked child it is its parent's lane: a signal's handler can fork in the middle of a call.
 */
static void count(uint64_t *calls, uint64_t more)
{
	if (calls && calls_now() == calls)
		__atomic_fetch_add(calls, more, __ATOMIC_SEQ_CST);
}

static bool is_away(const uint64_t *away)
{
	return __atomic_load_n(away, __ATOMIC_SEQ_CST) != 0; /* not before the count is seen */
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

/* The process exits while its memory is on the host. Calls that free and end things, and those that
 * their hooks make, do not need it back. */
static uint32_t leaving;

static const char *const passing_names[] = {
    "cuMemFree_v2",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuLibraryUnload",
    "cuEventDestroy_v2",
    "cuStreamDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuArrayDestroy",
    "cuMipmappedArrayDestroy",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuStreamIsCapturing",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxGetState",
    "cuMemPoolGetAttribute",
};
#define PASSING (sizeof(passing_names) / sizeof(*passing_names))

static const void *passing[PASSING];

/* Not called any more once the process is back, so a name that is missing costs time alone. */
static void leave_aside(void)
{
	struct elf_object object;

	mover_stop(true);
	if (library_find(&library_cuda, &object)) {
		for (size_t i = 0; i < PASSING; i++)
			passing[i] = elf_find_symbol(&object, passing_names[i]);
	}
	__atomic_store_n(&leaving, 1, __ATOMIC_RELEASE);
}

bool gate_is_leaving(void)
{
	return __atomic_load_n(&leaving, __ATOMIC_ACQUIRE);
}

static bool passes(const void *function)
{
	if (!gate_is_leaving())
		return false;
	for (size_t i = 0; i < PASSING; i++) {
		if (passing[i] == function)
			return true;
	}
	return piece_is_free(function);
}

/* The stubs call this after they have counted a call of the function while the slice is evicted.
 * The call is counted when this returns. */
__attribute__((visibility("hidden"))) void gate_wait(uint64_t *calls, const uint64_t *away,
                                                     const void *function);
void gate_wait(uint64_t *calls, const uint64_t *away, const void *function)
{
	struct quiet quiet;
	enum gate_answer answer;

	if (passes(function)) {
		count(calls, -(uint64_t)CALL_MADE); /* it asks for no return */
		return;
	}
	quiet = quiet_begin();
	if (__atomic_exchange_n(&leaving, 0, __ATOMIC_ACQ_REL))
		mover_stop(false);
	/* Each turn counts a call that was made. The enforcer sees that, even where the process
	 * cannot reach its socket any more. */
	do {
		count(calls, -(uint64_t)CALL_UNDER_WAY);
		answer = gate_ask();
		if (answer == GATE_BACK && is_away(away))
			pause_for(SHORT_PAUSE);
		if (answer == GATE_GONE)
			mover_return();
		count(calls, GATE_CALL);
	} while (answer != GATE_GONE && is_away(away));
	quiet_end(quiet);
}

/* Of the C library, whose atexit() is not in its shared object. */
int run_at_exit(void (*function)(void *), void *argument, void *object) __asm__("__cxa_atexit");

/*
 * The driver's own work at exit passes no gate: after the driver's checkpoint it would wait for the
 * memory, and ask nobody to bring it back. Functions that the driver registered before the process
 * attached run after this one, and the process does not move any more. A process that has moved its
 * memory itself does not need it back.
 */
static void exit_begins(void *unused)
{
	struct gate *gate = &process_seen()->gate;
	uint64_t *calls = calls_now();

	(void)unused;
	if (!calls)
		return;
	count(calls, GATE_CALL);
	if (is_away(gate->away) && gate->moves && mover_is_aside())
		leave_aside();
	else if (is_away(gate->away))
		gate_wait(calls, gate->away, NULL);
}

void gate_begin(struct ledger *ledger, struct ledger_lane *lane)
{
	struct gate *gate = &process_seen()->gate;

	if (!gate_is_elastic())
		return;
	/* Where the kernel does not wipe it, a forked child would count in its parent's lane. */
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
	static bool registered; /* A forked child inherits it. */

	if (calls_now() && !__atomic_exchange_n(&registered, true, __ATOMIC_RELAXED))
		(void)run_at_exit(exit_begins, NULL, NULL);
}

/*
 * Called by the unwinder: a thread leaves a call of the driver by being cancelled in it, or by an
 * exception that a callback threw. (By longjmp it would stay counted.)
 */
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
