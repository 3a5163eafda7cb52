/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include "context.h"
#include "handover.h"
#include "state.h"

/* A word of the table: block number, device, number of allocations. 36 bits of block number cover
 * addresses of 57 bits; 2^22 allocations are two for each byte. */
#define USES_BITS 22
#define ORDINAL_BITS 6
#define USES_MASK ((1ull << USES_BITS) - 1)

static_assert(PROCESS_ORDINALS <= 1 << ORDINAL_BITS, "the word has room for the device");

static uint64_t number_of(CUdeviceptr pointer)
{
	return pointer / BLOCK_BYTES;
}

static uint64_t word_of(uint64_t number, CUdevice ordinal)
{
	return number << (USES_BITS + ORDINAL_BITS) | (uint64_t)ordinal << USES_BITS;
}

static bool is_of(uint64_t word, uint64_t number)
{
	return word && word >> (USES_BITS + ORDINAL_BITS) == number;
}

static CUdevice ordinal_in(uint64_t word)
{
	return (CUdevice)(word >> USES_BITS & ((1u << ORDINAL_BITS) - 1));
}

static uint64_t *small_of(struct blocks *blocks, uint64_t number)
{
	return &blocks->small[number % BLOCK_PLACES];
}

/* Block numbers start at 0, keys do not. */
static uint64_t key_of(CUdeviceptr pointer)
{
	return number_of(pointer) + 1;
}

static uint32_t *present(struct blocks *blocks, uint64_t number)
{
	return &blocks->present[number % BLOCK_PRESENT];
}

static void count_present(struct blocks *blocks, uint64_t number, uint32_t by)
{
	__atomic_fetch_add(present(blocks, number), by, __ATOMIC_RELAXED);
}

uint64_t block_round(uint64_t bytes)
{
	if (bytes > UINT64_MAX - BLOCK_BYTES)
		return UINT64_MAX;
	return (bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1);
}

/* False if the table does not have the block. */
static bool use_small(struct blocks *blocks, uint64_t number)
{
	uint64_t *at = small_of(blocks, number);
	uint64_t word = __atomic_load_n(at, __ATOMIC_RELAXED);

	while (is_of(word, number)) {
		if (__atomic_compare_exchange_n(at, &word, word + 1, true, __ATOMIC_ACQ_REL,
		                                __ATOMIC_RELAXED))
			return true;
	}
	return false;
}

/* False if the block's place is taken. */
static bool put_small(struct blocks *blocks, uint64_t number, CUdevice ordinal)
{
	uint64_t none = 0;

	if (!__atomic_compare_exchange_n(small_of(blocks, number), &none,
	                                 word_of(number, ordinal) | 1, false, __ATOMIC_ACQ_REL,
	                                 __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&blocks->owner[number % BLOCK_PLACES], context_current(),
	                 __ATOMIC_RELAXED);
	count_present(blocks, number, 1);
	return true;
}

/* Add an allocation to the map. Its block is charged once. */
static void put_large(struct blocks *blocks, CUdeviceptr pointer, const struct block *block)
{
	struct block *known;
	bool fresh = false;

	lock_take(&blocks->lock);
	known = map_put(&blocks->large, key_of(pointer), &fresh);
	if (fresh)
		*known = *block;
	else if (known)
		known->uses += block->uses;
	lock_give(&blocks->lock);
	if (fresh)
		count_present(blocks, number_of(pointer), 1);
	else if (known) /* the driver packed it into a block that was charged already */
		process_release(block->ordinal, block->bytes, KIND_MEMORY);
}

/* False if the map does not have the block. */
static bool use_large(struct blocks *blocks, CUdeviceptr pointer)
{
	struct block *known;

	if (!__atomic_load_n(present(blocks, number_of(pointer)), __ATOMIC_ACQUIRE))
		return false;
	LOCKED(&blocks->lock);
	known = map_find(&blocks->large, key_of(pointer));
	if (known)
		known->uses++;
	return known;
}

static enum grant_result begin_block(struct blocks *blocks, CUdeviceptr pointer, CUdevice ordinal)
{
	uint64_t number = number_of(pointer);
	enum grant_result result;

	if (use_large(blocks, pointer))
		return GRANTED;
	result = grant(ordinal, BLOCK_BYTES, KIND_MEMORY, LEDGER_CALL_BLOCK);
	if (result != GRANTED || put_small(blocks, number, ordinal))
		return result;
	if (use_small(blocks, number)) /* another thread was first */
		process_release(ordinal, BLOCK_BYTES, KIND_MEMORY);
	else
		put_large(blocks, pointer,
		          &(struct block){.bytes = BLOCK_BYTES,
		                          .owner = context_current(),
		                          .ordinal = ordinal,
		                          .uses = 1});
	return GRANTED;
}

bool block_took_small_of_known(CUdeviceptr pointer)
{
	return use_small(&state.blocks, number_of(pointer));
}

enum grant_result block_took_small(CUdeviceptr pointer, CUdevice ordinal)
{
	if (__builtin_expect(block_took_small_of_known(pointer), 1))
		return GRANTED;
	return begin_block(&state.blocks, pointer, ordinal);
}

void block_took(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes)
{
	struct blocks *blocks = &state_get()->blocks;
	struct block block = {
	    .bytes = bytes, .owner = context_current(), .ordinal = ordinal, .uses = 1};
	struct block stale;

	/* An allocation of several blocks shares none: an entry at its address is stale. */
	if (bytes > BLOCK_BYTES)
		while (block_leave(pointer, &stale) && !stale.piece)
			block_left(pointer, &stale, CUDA_SUCCESS);
	else if (use_small(blocks, number_of(pointer))) {
		process_release(ordinal, bytes, KIND_MEMORY);
		return;
	}
	put_large(blocks, pointer, &block);
}

/* False if the table does not have the block. */
static bool leave_small(struct blocks *blocks, uint64_t number, struct block *block)
{
	uint64_t *at = small_of(blocks, number);
	uint64_t word = __atomic_load_n(at, __ATOMIC_RELAXED), left, owner = 0;

	while (is_of(word, number)) {
		left = (word & USES_MASK) > 1 ? word - 1 : 0;
		if (!left) /* read before the swap, which frees the place */
			owner = __atomic_load_n(&blocks->owner[number % BLOCK_PLACES],
			                        __ATOMIC_RELAXED);
		if (!__atomic_compare_exchange_n(at, &word, left, true, __ATOMIC_ACQ_REL,
		                                 __ATOMIC_RELAXED))
			continue;
		*block = (struct block){.bytes = BLOCK_BYTES,
		                        .owner = owner,
		                        .ordinal = ordinal_in(word),
		                        .uses = (uint32_t)(word & USES_MASK) - 1};
		if (!left)
			count_present(blocks, number, UINT32_MAX);
		return true;
	}
	return false;
}

static bool leave_large(struct blocks *blocks, CUdeviceptr pointer, struct block *block)
{
	struct block *known;

	lock_take(&blocks->lock);
	known = map_find(&blocks->large, key_of(pointer));
	if (known) {
		known->uses -= !known->piece;
		*block = *known;
		if (!known->uses)
			map_remove(&blocks->large, known);
	}
	lock_give(&blocks->lock);
	if (known && !block->uses)
		count_present(blocks, number_of(pointer), UINT32_MAX);
	return known;
}

/* --- pieces ---------------------------------------------------------------------------------- */

bool block_took_piece(CUdeviceptr pointer, const struct block *piece)
{
	struct blocks *blocks = STATE_TAKE(blocks);
	struct block *known = map_put(&blocks->large, key_of(pointer), NULL);

	if (known) {
		*known = *piece;
		known->serial = ++blocks->serial;
	}
	lock_give(&blocks->lock);
	if (known)
		count_present(blocks, number_of(pointer), 1);
	return known;
}

static struct block *piece_at(struct blocks *blocks, CUdeviceptr pointer)
{
	struct block *known =
	    pointer % BLOCK_BYTES ? NULL : map_find(&blocks->large, key_of(pointer));

	return known && known->piece ? known : NULL;
}

bool block_find_piece(CUdeviceptr pointer, struct block *piece)
{
	STATE_LOCKED(blocks, blocks);
	const struct block *known = piece_at(blocks, pointer);

	if (known && known->freed)
		known = NULL;
	if (known)
		*piece = *known;
	return known;
}

bool block_free_piece(CUdeviceptr pointer)
{
	STATE_LOCKED(blocks, blocks);
	struct block *known = piece_at(blocks, pointer);
	bool marked = known && !known->freed;

	if (marked) {
		known->freed = true;
		blocks->freed++;
	}
	return marked;
}

bool block_leave_piece(CUdeviceptr pointer, uint32_t serial)
{
	struct blocks *blocks = STATE_TAKE(blocks);
	struct block *known = piece_at(blocks, pointer);

	if (known && known->serial != serial)
		known = NULL;
	if (known) {
		blocks->freed -= known->freed;
		map_remove(&blocks->large, known);
	}
	lock_give(&blocks->lock);
	if (known)
		count_present(blocks, number_of(pointer), UINT32_MAX);
	return known;
}

size_t block_pieces(uint64_t owner, bool freed, struct block_at *list, size_t room)
{
	STATE_LOCKED(blocks, blocks);
	struct block *at = NULL;
	size_t count = 0;

	while ((!freed || blocks->freed) && (at = map_next(&blocks->large, at))) {
		if (!at->piece || (owner && at->owner != owner) || (freed && !at->freed))
			continue;
		if (count < room)
			list[count] = (struct block_at){(map_key(at) - 1) * BLOCK_BYTES, *at};
		count++;
	}
	return count;
}

/* --- frees ------------------------------------------------------------------------------------ */

bool block_leave(CUdeviceptr pointer, struct block *block)
{
	return __builtin_expect(leave_small(&state.blocks, number_of(pointer), block), 1) ||
	       leave_large(&state.blocks, pointer, block);
}

static __attribute__((noinline)) void put_back(CUdeviceptr pointer, struct block block)
{
	struct blocks *blocks = &state_get()->blocks;

	/* If the block is in use, its charge is shared. If its other allocations were freed in the
	 * meantime, its charge was released. */
	if (use_small(blocks, number_of(pointer)) || use_large(blocks, pointer)) {
		if (!block.uses)
			process_release(block.ordinal, block.bytes, KIND_MEMORY);
		return;
	}
	if (block.uses)
		process_charge_anyway(block.ordinal, block.bytes, KIND_MEMORY);
	block.uses = 1;
	if (!block.owner)
		block.owner = context_current();
	put_large(blocks, pointer, &block);
}

/* Return the bytes of a freed block that no other process uses. */
static uint64_t left_of(CUdeviceptr pointer, const struct block *block)
{
	return block->bytes -
	       handover_kept(number_of(pointer) * BLOCK_BYTES, block->bytes, block->ordinal);
}

void block_left(CUdeviceptr pointer, const struct block *block, CUresult result)
{
	if (__builtin_expect(result != CUDA_SUCCESS, 0))
		put_back(pointer, *block);
	else if (!block->uses)
		process_release(block->ordinal, left_of(pointer, block), KIND_MEMORY);
}

bool block_maybe(CUdeviceptr pointer)
{
	return __atomic_load_n(present(&state.blocks, number_of(pointer)), __ATOMIC_RELAXED) != 0;
}

void block_set_owner(uint64_t from, uint64_t to)
{
	struct blocks *blocks = &state_get()->blocks;
	struct block *at = NULL;

	for (unsigned i = 0; i < BLOCK_PLACES; i++) {
		if (__atomic_load_n(&blocks->small[i], __ATOMIC_RELAXED) &&
		    __atomic_load_n(&blocks->owner[i], __ATOMIC_RELAXED) == from)
			__atomic_store_n(&blocks->owner[i], to, __ATOMIC_RELAXED);
	}
	LOCKED(&blocks->lock);
	while ((at = map_next(&blocks->large, at))) {
		if (at->owner == from)
			at->owner = to;
	}
}

void block_owner_gone(uint64_t owner)
{
	struct blocks *blocks = &state_get()->blocks;
	uint64_t bytes[PROCESS_ORDINALS] = {0};
	struct block *at = NULL;

	for (unsigned i = 0; i < BLOCK_PLACES; i++) {
		uint64_t word = __atomic_load_n(&blocks->small[i], __ATOMIC_ACQUIRE);

		if (!word || __atomic_load_n(&blocks->owner[i], __ATOMIC_RELAXED) != owner)
			continue;
		word = __atomic_exchange_n(&blocks->small[i], 0, __ATOMIC_ACQ_REL);
		if (!word)
			continue;
		count_present(blocks, word >> (USES_BITS + ORDINAL_BITS), UINT32_MAX);
		bytes[ordinal_in(word)] +=
		    BLOCK_BYTES - handover_kept((word >> (USES_BITS + ORDINAL_BITS)) * BLOCK_BYTES,
		                                BLOCK_BYTES, ordinal_in(word));
	}
	lock_take(&blocks->lock);
	while ((at = map_next(&blocks->large, at))) {
		if (at->owner != owner)
			continue;
		bytes[at->ordinal] += left_of((map_key(at) - 1) * BLOCK_BYTES, at);
		count_present(blocks, map_key(at) - 1, UINT32_MAX);
		at = map_remove_at(&blocks->large, at);
	}
	lock_give(&blocks->lock);
	for (CUdevice ordinal = 0; ordinal < PROCESS_ORDINALS; ordinal++) {
		if (bytes[ordinal])
			process_release(ordinal, bytes[ordinal], KIND_MEMORY);
	}
}
