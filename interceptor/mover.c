/* SPDX-License-Identifier: Apache-2.0 */
#include "mover.h"

#include "context.h"
#include "entry.h"
#include "piece.h"
#include "recording.h"
#include "state.h"
#include "threads.h"

#include <linux/futex.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CONTEXTS 64          /* maximum for a process that moves itself */
#define DRAIN_PACE 1000000   /* nanoseconds */
#define RETURN_PACE 10000000 /* nanoseconds */

static uint8_t wanted(const struct mover *m)
{
	return __atomic_load_n(&m->move->want, __ATOMIC_SEQ_CST);
}

/* Publishes where the memory is. */
static void set_place(struct mover *m, enum ledger_place place)
{
	__atomic_store_n(&m->is, place, __ATOMIC_SEQ_CST);
	__atomic_store_n(&m->move->is, (uint8_t)place, __ATOMIC_SEQ_CST);
}

/* --- the steps ------------------------------------------------------------------------------ */

static uint64_t calls(void)
{
	return __atomic_load_n(process_seen()->gate.calls, __ATOMIC_SEQ_CST);
}

/* Waits until no work runs in any context. No lock is held: a kernel may depend on another
 * thread. */
static bool wait_for_work(void)
{
	uint64_t handles[CONTEXTS];
	size_t count = context_list(handles, CONTEXTS);
	bool well = count <= CONTEXTS;

	for (size_t i = 0; well && i < count; i++)
		well = context_wait(handles[i]) == CUDA_SUCCESS;
	return well;
}

/* From LEDGER_RUNNING to LEDGER_LOCKED. */
static enum ledger_move_failure lock_all(struct mover *m, uint8_t want)
{
	struct timespec pace = {.tv_nsec = DRAIN_PACE};
	struct process *process = process_seen();
	uint64_t seen;

	if (!__atomic_load_n(process->gate.away, __ATOMIC_SEQ_CST) || state.contexts.green)
		return LEDGER_MOVE_DRIVER;
	do {
		while ((uint16_t)(seen = calls()) && wanted(m) == want)
			nanosleep(&pace, NULL);
		if (wanted(m) != want)
			return LEDGER_MOVE_DONE;
		if (recording_any())
			return LEDGER_MOVE_BUSY;
		if (!wait_for_work())
			return LEDGER_MOVE_DRIVER;
	} while (calls() != seen);
	if (!swap_list(&m->swap))
		return LEDGER_MOVE_HOST;
	if (swap_is_few(&m->swap))
		return LEDGER_MOVE_FEW;
	/* After a new request the enforcer sees either that this is locked, or that it is not, and
	 * then opens the gate. */
	set_place(m, LEDGER_LOCKED);
	if (wanted(m) != want)
		set_place(m, LEDGER_RUNNING);
	return LEDGER_MOVE_DONE;
}

/* From LEDGER_LOCKED, or an incomplete move, to one of the two places. */
static enum ledger_move_failure move_to(struct mover *m, uint8_t want, bool out)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE;

	if (out || m->is != LEDGER_LOCKED)
		failure = swap_move(&m->swap, out, m->move, want);
	if (out && failure == LEDGER_MOVE_DONE)
		swap_trim(&m->swap);
	set_place(m, out && failure == LEDGER_MOVE_DONE && wanted(m) == want
	                 ? LEDGER_ASIDE
	                 : swap_place(&m->swap));
	return failure;
}

/* While the gate is open, other threads may destroy the context. */
static enum ledger_move_failure drop_host_memory(struct mover *m, bool shut)
{
	if (!shut && !gate_enter())
		return LEDGER_MOVE_BUSY;
	swap_trim(&m->swap);
	if (!shut)
		gate_leave();
	return LEDGER_MOVE_DONE;
}

static enum ledger_move_failure take_step(struct mover *m, uint8_t want)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE;
	bool was_running = m->is == LEDGER_RUNNING;

	switch (want & LEDGER_WANT_PLACE) {
	case LEDGER_LOCKED:
	case LEDGER_ASIDE:
		if (was_running)
			failure = lock_all(m, want);
		if (failure == LEDGER_MOVE_DONE && m->is != LEDGER_RUNNING)
			failure = move_to(m, want, (want & LEDGER_WANT_PLACE) == LEDGER_ASIDE);
		return failure;
	case LEDGER_RUNNING:
	case LEDGER_BARE:
		if (!was_running)
			failure = move_to(m, want, false);
		if (m->is == LEDGER_LOCKED)
			set_place(m, LEDGER_RUNNING);
		if (m->is == LEDGER_RUNNING && (want & LEDGER_WANT_PLACE) == LEDGER_BARE)
			failure = drop_host_memory(m, !was_running);
		return failure;
	default:
		return LEDGER_MOVE_DRIVER;
	}
}

/* --- the thread ----------------------------------------------------------------------------- */

static void *run(void *unused)
{
	struct mover *m = &state.mover;
	union {
		struct ledger_move move;
		uint32_t word;
	} seen;

	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)unused;
	(void)prctl(PR_SET_NAME, "gpuslice");
	/* Calls while the gate is open must not invalidate the program's captures. */
	if (DRIVER_HAS(cuThreadExchangeStreamCaptureMode))
		(void)BEHIND(cuThreadExchangeStreamCaptureMode)(&mode);
	set_place(m, LEDGER_RUNNING);
	for (;;) {
		uint8_t want = wanted(m);
		enum ledger_move_failure failure;

		memcpy(&seen, m->move, sizeof(seen));
		if (want == seen.move.answered) {
			if (seen.move.want == want)
				syscall(SYS_futex, m->move, FUTEX_WAIT, seen.word, NULL, NULL, 0);
			continue;
		}
		lock_take(&m->lock);
		if (m->stopped) {
			lock_give(&m->lock);
			syscall(SYS_futex, &m->stopped, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
			continue;
		}
		failure = take_step(m, want);
		lock_give(&m->lock);
		if (wanted(m) != want)
			continue;
		__atomic_store_n(&m->move->failure, failure, __ATOMIC_RELAXED);
		__atomic_store_n(&m->move->answered, want, __ATOMIC_RELEASE);
		syscall(SYS_futex, m->move, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	}
	return NULL;
}

/* --- what the gate asks --------------------------------------------------------------------- */

static void set_stopped(bool stopped)
{
	struct mover *m = &state.mover;

	lock_take(&m->lock);
	m->stopped = stopped;
	lock_give(&m->lock);
	syscall(SYS_futex, &m->stopped, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* At exit these calls, and those that their hooks make, do not need the memory back. A function
 * missing from the list brings it back: that only costs time. */
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

static bool stay(void)
{
	struct elf_object object;

	/* All is on the host, and no move is under way. */
	if (__atomic_load_n(&state.mover.is, __ATOMIC_SEQ_CST) != LEDGER_ASIDE)
		return false;
	set_stopped(true);
	if (library_find(&library_cuda, &object)) {
		for (size_t i = 0; i < PASSING; i++)
			passing[i] = elf_find_symbol(&object, passing_names[i]);
	}
	return true;
}

static void resume(void)
{
	set_stopped(false);
}

static bool passes(const void *function)
{
	for (size_t i = 0; i < PASSING; i++) {
		if (passing[i] == function)
			return true;
	}
	return function == (const void *)piece_free;
}

/* Waits until this process has brought its memory back, without the enforcer. */
static void bring_back(void)
{
	struct timespec pace = {.tv_nsec = RETURN_PACE};
	struct mover *m = &state.mover;
	struct ledger_move *move = m->move;

	for (;;) {
		uint8_t answered = __atomic_load_n(&move->answered, __ATOMIC_SEQ_CST);
		uint8_t want = wanted(m), next;

		if ((want & LEDGER_WANT_PLACE) == LEDGER_RUNNING && answered == want &&
		    __atomic_load_n(&m->is, __ATOMIC_SEQ_CST) == LEDGER_RUNNING)
			return;
		/* Only other threads of this process write here now: one of them suffices. */
		if ((want & LEDGER_WANT_PLACE) != LEDGER_RUNNING || answered == want) {
			next = ledger_want(want, LEDGER_RUNNING);
			if (__atomic_compare_exchange_n(&move->want, &want, next, false,
			                                __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
				syscall(SYS_futex, move, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
		}
		nanosleep(&pace, NULL);
	}
}

static const struct gate_mover moves = {
    .stay = stay, .resume = resume, .passes = passes, .bring_back = bring_back};

/* Starts the thread if the enforcer requested so in this process's lane. */
static void begin(void)
{
	struct process *process = process_seen();
	struct ledger_lane *lane = &process->ledger->lane[process->lane];
	struct mover *m = &state.mover;
	struct ledger_move *none = NULL;
	pthread_t thread;

	/* A driver of another namespace has another C library, without data for this thread. */
	if (!lane->move.want || library_cuda.namespace || !process->gate.calls ||
	    !__atomic_compare_exchange_n(&m->move, &none, &lane->move, false, __ATOMIC_ACQ_REL,
	                                 __ATOMIC_RELAXED))
		return;
	if (!threads_begin(&thread, run, NULL))
		return;
	__atomic_store_n(&process->gate.moves, &moves, __ATOMIC_RELEASE);
}
UPCALL(process_begun, begin);
