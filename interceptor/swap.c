/* SPDX-License-Identifier: Apache-2.0 */
#include "swap.h"

#include "context.h"
#include "movable.h"
#include "pages.h"
#include "piece.h"
#include "process.h"
#include "say.h"
#include "stream.h"

#include <string.h>

/* Bytes of a copy: none crosses a boundary of pinned parts (arena.c). */
#define COPY (16ull << 20)
/* Bytes after which copies are waited for, and memory is freed. */
#define BATCH (512ull << 20)

/* --- the list ------------------------------------------------------------------------------- */

/* The oldest first. */
static bool moves_later(const struct block_at *a, const struct block_at *b)
{
	return a->block.piece != b->block.piece ? b->block.piece
	                                        : a->block.serial > b->block.serial;
}

/* (qsort may allocate.) */
static void sort_list(struct swap *swap)
{
	for (size_t gap = swap->count / 2; gap; gap /= 2) {
		for (size_t i = gap, at; i < swap->count; i++) {
			struct block_at one = swap->list[i];

			for (at = i; at >= gap && moves_later(&swap->list[at - gap], &one);
			     at -= gap)
				swap->list[at] = swap->list[at - gap];
			swap->list[at] = one;
		}
	}
}

/* Lists what can move, up to the list's room. Any context serves for memory of cuMemCreate. */
static size_t fill_list(struct swap *swap)
{
	size_t pieces = block_pieces(0, false, swap->list, swap->room);
	size_t room = pieces < swap->room ? swap->room - pieces : 0;
	uint64_t owner;

	if (!context_list(&owner, 1))
		return pieces;
	return pieces + movable_list(room ? swap->list + pieces : NULL, room, owner);
}

bool swap_list(struct swap *swap)
{
	size_t count;

	while ((count = fill_list(swap)) > swap->room) {
		size_t room = 2 * count;
		size_t each = sizeof(*swap->list) + sizeof(*swap->place);
		void *memory = pages_map(room * each);

		if (!memory)
			return false;
		if (swap->list)
			munmap(swap->list, swap->room * each);
		swap->list = memory;
		swap->place = (struct swap_place *)(swap->list + room);
		swap->room = room;
	}
	swap->count = count;
	sort_list(swap);
	swap->bytes = 0;
	for (size_t i = 0; i < count; i++) {
		swap->place[i] = (struct swap_place){.offset = swap->bytes};
		swap->bytes += swap->list[i].block.bytes;
	}
	if (count)
		swap->device = process_device(process_seen(), swap->list[0].block.ordinal);
	return true;
}

/* Gets the bytes held on the device besides the list, and those that may stay. False if unknown. */
static bool others_and_stay(const struct swap *swap, uint64_t *others, uint64_t *stay)
{
	struct process *process = process_seen();
	uint64_t held;

	if (!swap->count || swap->device < 0)
		return false;
	lock_take(&process->account_lock);
	held = process->held[swap->device].account.slice.held;
	lock_give(&process->account_lock);
	*others = held > swap->bytes ? held - swap->bytes : 0;
	*stay = __atomic_load_n(&process->ledger->device[swap->device].stay, __ATOMIC_RELAXED);
	return true;
}

static uint64_t held_in_all(void)
{
	struct process *process = process_seen();
	uint64_t sum = 0;

	LOCKED(&process->account_lock);
	for (size_t i = 0; i < LEDGER_DEVICES; i++)
		sum += process->held[i].account.slice.held;
	return sum;
}

bool swap_is_few(const struct swap *swap)
{
	uint64_t others, stay;

	if (!swap->count)
		return held_in_all() != 0;
	return !others_and_stay(swap, &others, &stay) ||
	       (others > swap->bytes / 3 && others > stay);
}

static uint64_t may_stay(const struct swap *swap)
{
	uint64_t others, stay;

	return others_and_stay(swap, &others, &stay) && stay > others ? stay - others : 0;
}

enum ledger_place swap_place(const struct swap *swap)
{
	size_t aside = 0;

	for (size_t i = 0; i < swap->count; i++)
		aside += swap->place[i].aside;
	return !aside ? LEDGER_LOCKED : aside == swap->count ? LEDGER_ASIDE : LEDGER_BETWEEN;
}

/* --- moves ---------------------------------------------------------------------------------- */

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

/* Computes the digests of a batch on the device, in its context. Another device may have no access
 * to it. */
static bool digest(const struct swap *swap, size_t first, size_t end)
{
	CUdevice device;
	bool well = BEHIND(cuCtxGetDevice)(&device) == CUDA_SUCCESS;

	for (size_t i = first; i < end && well; i++) {
		const struct block_at *at = &swap->list[i];

		if (device == at->block.ordinal)
			well = digest_begin(&swap->digests, at->pointer,
			                    swap->place[i].offset / BLOCK_BYTES,
			                    at->block.bytes / BLOCK_BYTES);
	}
	return BEHIND(cuStreamSynchronize)(STREAM_OWN) == CUDA_SUCCESS && well;
}

/* Returns the bytes from `offset` of the arena on, up to `most`, that are to be copied out, or are
 * there already. */
static uint64_t part_of(const struct swap *swap, uint64_t offset, uint64_t most, bool *same)
{
	uint64_t bytes = BLOCK_BYTES;

	*same = digest_same(&swap->digests, offset / BLOCK_BYTES);
	while (bytes < most && digest_same(&swap->digests, (offset + bytes) / BLOCK_BYTES) == *same)
		bytes += BLOCK_BYTES;
	return bytes;
}

/* Begins to copy `list[i]`, in its context. */
static CUresult copy(struct swap *swap, size_t i, bool out)
{
	const struct block_at *at = &swap->list[i];
	uint64_t end = swap->place[i].offset + at->block.bytes, part;
	CUresult result = CUDA_SUCCESS;

	for (uint64_t offset = swap->place[i].offset; offset < end && result == CUDA_SUCCESS;
	     offset += part) {
		CUdeviceptr pointer = at->pointer + (offset - swap->place[i].offset);
		unsigned char *host = swap->arena.memory + offset;
		bool same = false;

		part = COPY - offset % COPY;
		if (part > end - offset)
			part = end - offset;
		if (out && swap->digests.room) {
			part = part_of(swap, offset, part, &same);
			if (same) {
				swap->same += part;
				continue;
			}
			memset(&swap->digests.kept[offset / BLOCK_BYTES], 0,
			       part / BLOCK_BYTES * sizeof(struct digest));
		}
		result = out ? BEHIND(cuMemcpyDtoHAsync_v2)(host, pointer, part, STREAM_OWN)
		             : BEHIND(cuMemcpyHtoDAsync_v2)(pointer, host, part, STREAM_OWN);
	}
	return result;
}

/* Returns with the copy under way. */
static enum ledger_move_failure start(struct swap *swap, size_t i, bool out)
{
	const struct block_at *at = &swap->list[i];
	CUresult result;

	if (out && !arena_grow(&swap->arena, at->block.ordinal,
	                       swap->place[i].offset + at->block.bytes, swap->bytes))
		return LEDGER_MOVE_HOST;
	if (!out) {
		result = back_with_memory(at);
		if (result != CUDA_SUCCESS)
			return result == CUDA_ERROR_OUT_OF_MEMORY ? LEDGER_MOVE_DEVICE
			                                          : LEDGER_MOVE_DRIVER;
	}
	result = copy(swap, i, out);
	if (result != CUDA_SUCCESS && !out) {
		(void)BEHIND(cuStreamSynchronize)(STREAM_OWN);
		(void)free_memory(at);
	}
	return result == CUDA_SUCCESS ? LEDGER_MOVE_DONE : LEDGER_MOVE_DRIVER;
}

/* Waits for the copies of [first, end), in their context. A block without a whole copy stays. */
static enum ledger_move_failure finish(struct swap *swap, size_t first, size_t end, bool out)
{
	bool copied = BEHIND(cuStreamSynchronize)(STREAM_OWN) == CUDA_SUCCESS;
	bool all = copied;

	for (size_t i = first; i < end; i++) {
		const struct block_at *at = &swap->list[i];
		size_t block = swap->place[i].offset / BLOCK_BYTES;

		if (out && copied)
			digest_keep(&swap->digests, block, block + at->block.bytes / BLOCK_BYTES);
		if (out == copied && free_memory(at) != CUDA_SUCCESS)
			all = false;
		else if (copied)
			swap->place[i].aside = out;
	}
	return all ? LEDGER_MOVE_DONE : LEDGER_MOVE_DRIVER;
}

/* Returns the end of the batch at `list[first]`: blocks of one context that are to move. */
static size_t batch_end(const struct swap *swap, size_t first, size_t end, bool out)
{
	uint64_t bytes = 0;
	size_t i = first;

	while (i < end && bytes < BATCH && swap->place[i].aside != out &&
	       swap->list[i].block.owner == swap->list[first].block.owner)
		bytes += swap->list[i++].block.bytes;
	return i;
}

static bool is_wanted(const struct ledger_move *request, uint8_t want)
{
	return __atomic_load_n(&request->want, __ATOMIC_SEQ_CST) == want;
}

static enum ledger_move_failure move_batch(struct swap *swap, size_t first, size_t end, bool out,
                                           const struct ledger_move *request, uint8_t want)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE, last;
	size_t i = first;

	if (context_enter(swap->list[first].block.owner) != CUDA_SUCCESS)
		return LEDGER_MOVE_DRIVER;
	if (swap->digests.results && !digest(swap, first, end))
		digest_close(&swap->digests, false);
	while (i < end && is_wanted(request, want)) {
		failure = start(swap, i, out);
		if (failure != LEDGER_MOVE_DONE)
			break;
		i++;
	}
	last = finish(swap, first, i, out);
	context_leave();
	return failure != LEDGER_MOVE_DONE ? failure : last;
}

static void open_digests(struct swap *swap)
{
	digest_forget(&swap->digests);
	if (!swap->count || context_enter(swap->list[0].block.owner) != CUDA_SUCCESS)
		return;
	if (arena_reserve(&swap->arena, swap->list[0].block.ordinal))
		(void)digest_open(&swap->digests, swap->bytes / BLOCK_BYTES,
		                  swap->arena.room / BLOCK_BYTES);
	context_leave();
}

static void close_digests(struct swap *swap)
{
	if (!swap->digests.results || context_enter(swap->list[0].block.owner) != CUDA_SUCCESS)
		return;
	digest_close(&swap->digests, true);
	context_leave();
}

enum ledger_move_failure swap_move(struct swap *swap, bool out, const struct ledger_move *request,
                                   uint8_t want)
{
	enum ledger_move_failure failure = LEDGER_MOVE_DONE;
	uint64_t stay = out ? may_stay(swap) : 0;
	size_t first = 0, count = swap->count, end;

	while (count && swap->bytes - swap->place[count - 1].offset <= stay)
		count--;
	swap->same = 0;
	if (out)
		open_digests(swap);
	for (; first < count && failure == LEDGER_MOVE_DONE && is_wanted(request, want);
	     first = end) {
		end = batch_end(swap, first, count, out);
		if (end == first)
			end++; /* there already */
		else
			failure = move_batch(swap, first, end, out, request, want);
	}
	close_digests(swap);
	if (out)
		say_debug("%llu MiB can move, of which %llu MiB were in host memory as they are",
		          (unsigned long long)(swap->bytes >> 20),
		          (unsigned long long)(swap->same >> 20));
	return failure;
}

static uint64_t used_of_arena(const struct swap *swap)
{
	for (size_t i = swap->count; i > 0; i--) {
		if (swap->place[i - 1].aside)
			return swap->place[i - 1].offset + swap->list[i - 1].block.bytes;
	}
	return 0;
}

void swap_trim(struct swap *swap)
{
	uint64_t context, used = used_of_arena(swap), most = 0;

	if (swap->device >= 0)
		most = __atomic_load_n(&process_seen()->ledger->device[swap->device].keep,
		                       __ATOMIC_RELAXED);
	if (used > most)
		most = used;
	digest_lose(&swap->digests, most / BLOCK_BYTES);
	/* Without a context to unpin in, the enforcer takes the memory back all the same. */
	if (swap->arena.pinned <= most || !context_list(&context, 1) ||
	    context_enter(context) != CUDA_SUCCESS)
		return;
	arena_trim(&swap->arena, most);
	context_leave();
}
