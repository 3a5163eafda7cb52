/* SPDX-License-Identifier: Apache-2.0 */
#include "mover.h"

#include "arena.h"
#include "entry.h"
#include "movable.h"
#include "piece.h"
#include "recording.h"
#include "say.h"
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

/* Bytes of a copy: none crosses a boundary of pinned parts (arena.c). */
#define COPY (16ull << 20)
/* Bytes after which copies are waited for, and device memory is freed. */
#define BATCH (512ull << 20)
#define CONTEXTS 64              /* maximum for a process that moves itself */
#define DRAIN_PACE 1000000       /* nanoseconds */
#define RETURN_PACE 10000000     /* nanoseconds */
#define PER_THREAD ((CUstream)2) /* the thread's default stream */

static struct mover *mover_of(void)
{
	return &state.mover;
}

/* --- pieces --------------------------------------------------------------------------------- */

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

/* The oldest first. */
static bool moves_later(const struct block_at *a, const struct block_at *b)
{
	return a->block.piece != b->block.piece ? b->block.piece
	                                        : a->block.serial > b->block.serial;
}

/* (qsort may allocate.) */
static void sort_pieces(struct mover *m)
{
	for (size_t gap = m->count / 2; gap; gap /= 2) {
		for (size_t i = gap, at; i < m->count; i++) {
			struct block_at one = m->list[i];

			for (at = i; at >= gap && moves_later(&m->list[at - gap], &one); at -= gap)
				m->list[at] = m->list[at - gap];
			m->list[at] = one;
		}
	}
}

/* Lists what can move, up to the list's room. Any context serves for memory of cuMemCreate. */
static size_t fill_list(struct mover *m)
{
	size_t pieces = block_pieces(0, false, m->list, m->room);
	size_t room = pieces < m->room ? m->room - pieces : 0;
	uint64_t owner;

	if (!context_list(&owner, 1))
		return pieces;
	return pieces + movable_list(room ? m->list + pieces : NULL, room, owner);
}

static bool list_pieces(struct mover *m)
{
	size_t count;

	while ((count = fill_list(m)) > m->room) {
		size_t room = 2 * count;
		size_t each = sizeof(*m->list) + sizeof(*m->aside);
		void *memory = mmap(NULL, room * each, PROT_READ | PROT_WRITE,
		                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (memory == MAP_FAILED)
			return false;
		if (m->list)
			munmap(m->list, m->room * each);
		m->list = memory;
		m->aside = (bool *)(m->list + room);
		m->room = room;
	}
	m->count = count;
	m->bytes = 0;
	for (size_t i = 0; i < count; i++) {
		m->aside[i] = false;
		m->bytes += m->list[i].block.bytes;
	}
	if (count)
		m->device = process_device(process_seen(), m->list[0].block.ordinal);
	sort_pieces(m);
	return true;
}

/* Gets the bytes held on the device besides pieces, and those that may stay. False if unknown. */
static bool others_and_stay(const struct mover *m, uint64_t *others, uint64_t *stay)
{
	struct process *process = process_seen();
	uint64_t held;

	if (!m->count || m->device < 0)
		return false;
	lock_take(&process->account_lock);
	held = process->held[m->device].account.slice.held;
	lock_give(&process->account_lock);
	*others = held > m->bytes ? held - m->bytes : 0;
	*stay = __atomic_load_n(&process->ledger->device[m->device].stay, __ATOMIC_RELAXED);
	return true;
}

static uint64_t held_in_all(void)
{
	struct process *process = process_seen();
	uint64_t sum = 0;

	lock_take(&process->account_lock);
	for (size_t i = 0; i < LEDGER_DEVICES; i++)
		sum += process->held[i].account.slice.held;
	lock_give(&process->account_lock);
	return sum;
}

/* Reports whether too little of the process's memory can move. */
static bool is_mostly_fixed(const struct mover *m)
{
	uint64_t others, stay;

	if (!m->count)
		return held_in_all() != 0;
	return !others_and_stay(m, &others, &stay) || (others > m->bytes / 3 && others > stay);
}

static uint64_t may_stay(const struct mover *m)
{
	uint64_t others, stay;

	return others_and_stay(m, &others, &stay) && stay > others ? stay - others : 0;
}

static bool push_context(uint64_t owner)
{
	return BEHIND(cuCtxPushCurrent_v2)((CUcontext)(uintptr_t)(owner & ~1ull)) == CUDA_SUCCESS;
}

static void pop_context(void)
{
	CUcontext context;

	(void)BEHIND(cuCtxPopCurrent_v2)(&context);
}

static CUresult back_with_memory(const struct block_at *at)
{
	return at->block.piece ? piece_map(at->pointer, at->block.ordinal, at->block.bytes)
	                       : movable_bring(at->pointer);
}

static CUresult free_memory(const struct block_at *at)
{
	return at->block.piece ? piece_unmap(at->pointer, at->block.bytes)
	                       : movable_take(at->pointer);
}

/* Begins the digests of a piece, in a context of its device: another may have no access. */
static bool digest_piece(const struct mover *m, const struct block_at *at, uint64_t offset)
{
	CUdevice device;

	return BEHIND(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
	       (device != at->block.ordinal ||
	        digest_begin(&m->digests, at->pointer, offset / BLOCK_BYTES,
	                     at->block.bytes / BLOCK_BYTES));
}

/* Says how much of what moves has changed since the last move. */
static void say_digests(const struct mover *m, bool known)
{
	uint64_t same = 0;

	if (!say_wants_debug())
		return;
	for (size_t i = 0; known && i < m->bytes / BLOCK_BYTES; i++)
		same += digest_same(&m->digests, i);
	say_debug("%llu MiB can move, of which %llu MiB are in host memory as they are%s",
	          (unsigned long long)(m->bytes >> 20),
	          (unsigned long long)(same * BLOCK_BYTES >> 20), known ? "" : ": no digests");
}

/* Computes the digests of all pieces on the device. */
static void digest_all(struct mover *m)
{
	uint64_t offset = 0, owner = 0, first;
	bool well;

	digest_forget(&m->digests);
	if (!m->count || !arena_reserve(m, m->list[0].block.ordinal) || !context_list(&first, 1) ||
	    !push_context(first))
		return;
	well = digest_open(&m->digests, m->bytes / BLOCK_BYTES, m->arena_bytes / BLOCK_BYTES);
	pop_context();
	if (!well) {
		say_digests(m, false);
		return;
	}
	for (size_t i = 0; i < m->count && well; i++) {
		const struct block_at *at = &m->list[i];

		if (!m->aside[i] && owner != at->block.owner) {
			if (owner) {
				well = BEHIND(cuStreamSynchronize)(PER_THREAD) == CUDA_SUCCESS;
				pop_context();
			}
			owner = push_context(at->block.owner) ? at->block.owner : 0;
		}
		if (!m->aside[i])
			well = well && owner && digest_piece(m, at, offset);
		offset += at->block.bytes;
	}
	if (owner) {
		well = BEHIND(cuStreamSynchronize)(PER_THREAD) == CUDA_SUCCESS && well;
		pop_context();
	}
	if (push_context(first)) {
		digest_close(&m->digests, well);
		pop_context();
	}
	say_digests(m, well);
}

/* Returns the bytes from `offset` of the arena on, up to `most`, that are to be copied out, or are
 * there already. */
static uint64_t part_of(const struct mover *m, uint64_t offset, uint64_t most, bool *same)
{
	uint64_t bytes = BLOCK_BYTES;

	*same = digest_same(&m->digests, offset / BLOCK_BYTES);
	while (bytes < most && digest_same(&m->digests, (offset + bytes) / BLOCK_BYTES) == *same)
		bytes += BLOCK_BYTES;
	return bytes;
}

/* Copies a piece, in its context, from or to `offset` of the arena. */
static CUresult copy(const struct mover *m, const struct block_at *at, uint64_t offset, bool out)
{
	CUresult result = CUDA_SUCCESS;

	for (uint64_t done = 0, part; done < at->block.bytes && result == CUDA_SUCCESS;
	     done += part) {
		unsigned char *host = m->arena + offset + done;
		bool same = false;

		part = COPY - (offset + done) % COPY;
		if (part > at->block.bytes - done)
			part = at->block.bytes - done;
		if (out && m->digests.room) {
			part = part_of(m, offset + done, part, &same);
			if (same)
				continue;
			memset(&m->digests.kept[(offset + done) / BLOCK_BYTES], 0,
			       part / BLOCK_BYTES * sizeof(struct digest));
		}
		result =
		    out ? BEHIND(cuMemcpyDtoHAsync_v2)(host, at->pointer + done, part, PER_THREAD)
		        : BEHIND(cuMemcpyHtoDAsync_v2)(at->pointer + done, host, part, PER_THREAD);
	}
	return result;
}

/* Returns with the copy under way. */
static enum ledger_move_failure start(struct mover *m, const struct block_at *at, uint64_t offset,
                                      bool out)
{
	CUresult result;

	if (out && !arena_grow(m, at->block.ordinal, offset + at->block.bytes))
		return LEDGER_MOVE_HOST;
	if (!out) {
		result = back_with_memory(at);
		if (result != CUDA_SUCCESS)
			return result == CUDA_ERROR_OUT_OF_MEMORY ? LEDGER_MOVE_DEVICE
			                                          : LEDGER_MOVE_DRIVER;
	}
	result = copy(m, at, offset, out);
	if (result != CUDA_SUCCESS && !out) {
		(void)BEHIND(cuStreamSynchronize)(PER_THREAD);
		(void)free_memory(at);
	}
	return result == CUDA_SUCCESS ? LEDGER_MOVE_DONE : LEDGER_MOVE_DRIVER;
}

/* Waits for the copies of the pieces in [first, end) that have not moved, in their context. A piece
 * that was not copied completely stays. */
static enum ledger_move_failure finish(struct mover *m, size_t first, size_t end, bool out)
{
	bool copied = first == end || BEHIND(cuStreamSynchronize)(PER_THREAD) == CUDA_SUCCESS;
	bool all = copied;

	for (size_t i = first; i < end; i++) {
		const struct block_at *at = &m->list[i];

		if (m->aside[i] == out)
			continue;
		if (out == copied && free_memory(at) != CUDA_SUCCESS)
			all = false;
		else if (copied)
			m->aside[i] = out;
	}
	return all ? LEDGER_MOVE_DONE : LEDGER_MOVE_DRIVER;
}

/* Moves all pieces but those that may stay, until one fails or the request changes. */
static enum ledger_move_failure move_all(struct mover *m, uint8_t want, bool out)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE, last;
	uint64_t offset = 0, from = 0, batch = 0, owner = 0, stay = out ? may_stay(m) : 0;
	size_t first = 0, i;

	if (out)
		digest_all(m);
	for (i = 0; i < m->count && failure == LEDGER_MOVE_DONE && wanted(m) == want; i++) {
		const struct block_at *at = &m->list[i];

		if (m->bytes - offset <= stay)
			break;
		if (m->aside[i] != out) {
			if (owner && (owner != at->block.owner || batch >= BATCH)) {
				failure = finish(m, first, i, out);
				if (failure == LEDGER_MOVE_DONE && out)
					digest_keep(&m->digests, from / BLOCK_BYTES,
					            offset / BLOCK_BYTES);
				first = i;
				from = offset;
				batch = 0;
			}
			if (owner != at->block.owner) {
				if (owner)
					pop_context();
				owner = push_context(at->block.owner) ? at->block.owner : 0;
			}
			if (failure == LEDGER_MOVE_DONE)
				failure = owner ? start(m, at, offset, out) : LEDGER_MOVE_DRIVER;
			if (failure != LEDGER_MOVE_DONE)
				break;
			batch += at->block.bytes;
		}
		offset += at->block.bytes;
	}
	if (!owner)
		return failure;
	last = finish(m, first, i, out);
	if (last == LEDGER_MOVE_DONE && out)
		digest_keep(&m->digests, from / BLOCK_BYTES, offset / BLOCK_BYTES);
	pop_context();
	return failure != LEDGER_MOVE_DONE ? failure : last;
}

/* Returns the place of all pieces, if none may stay. */
static enum ledger_place place_of_all(const struct mover *m)
{
	size_t aside = 0;

	for (size_t i = 0; i < m->count; i++)
		aside += m->aside[i];
	return !aside ? LEDGER_LOCKED : aside == m->count ? LEDGER_ASIDE : LEDGER_BETWEEN;
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

	for (size_t i = 0; well && i < count; i++) {
		well = push_context(handles[i]);
		if (!well)
			break;
		well = BEHIND(cuCtxSynchronize)() == CUDA_SUCCESS;
		pop_context();
	}
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
	if (!list_pieces(m))
		return LEDGER_MOVE_HOST;
	if (is_mostly_fixed(m))
		return LEDGER_MOVE_FEW;
	/* After a new request the enforcer sees either that this is locked, or that it is not, and
	 * then opens the gate. */
	set_place(m, LEDGER_LOCKED);
	if (wanted(m) != want)
		set_place(m, LEDGER_RUNNING);
	return LEDGER_MOVE_DONE;
}

/* Frees host memory beyond what is used or may be kept. Unpinning needs a context. Without one the
 * enforcer takes the memory back all the same. */
static void trim(struct mover *m, uint64_t used)
{
	uint64_t context, most = 0;

	if (m->device >= 0)
		most = __atomic_load_n(&process_seen()->ledger->device[m->device].keep,
		                       __ATOMIC_RELAXED);
	if (used > most)
		most = used;
	digest_lose(&m->digests, most / BLOCK_BYTES);
	if (m->pinned <= most || !context_list(&context, 1) || !push_context(context))
		return;
	arena_trim(m, most);
	pop_context();
}

/* Returns the end of the moved bytes in the arena. */
static uint64_t used_of_arena(const struct mover *m)
{
	uint64_t offset = 0, used = 0;

	for (size_t i = 0; i < m->count; i++) {
		offset += m->list[i].block.bytes;
		if (m->aside[i])
			used = offset;
	}
	return used;
}

/* From LEDGER_LOCKED, or an incomplete move, to one of the two places. */
static enum ledger_move_failure move_to(struct mover *m, uint8_t want, bool out)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE;

	if (out || m->is != LEDGER_LOCKED)
		failure = move_all(m, want, out);
	if (out && failure == LEDGER_MOVE_DONE)
		trim(m, used_of_arena(m));
	set_place(m, out && failure == LEDGER_MOVE_DONE && wanted(m) == want ? LEDGER_ASIDE
	                                                                     : place_of_all(m));
	return failure;
}

/* While the gate is open, other threads may destroy the context. */
static enum ledger_move_failure drop_host_memory(struct mover *m, bool shut)
{
	if (!shut && !gate_enter())
		return LEDGER_MOVE_BUSY;
	trim(m, 0);
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
	struct mover *m = mover_of();
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
	struct mover *m = mover_of();

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
	if (__atomic_load_n(&mover_of()->is, __ATOMIC_SEQ_CST) != LEDGER_ASIDE)
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
	return piece_is_free(function);
}

/* Waits until this process has brought its memory back, without the enforcer. */
static void bring_back(void)
{
	struct timespec pace = {.tv_nsec = RETURN_PACE};
	struct mover *m = mover_of();
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
	struct mover *m = mover_of();
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
