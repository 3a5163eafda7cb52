/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear memory as the driver takes it from the device: in blocks of 2 MiB.
 *
 * Driver observation (H100, 580.159.04): below 2 MiB an allocation is packed into a block with
 * others of its context, and a block goes back to the device with the last allocation in it; above
 * it begins on a block and takes whole ones. So what counts is which blocks are in use. For small
 * allocations that is also the cheapest to keep: hundreds of them touch the ledger once.
 *
 * Which block a small allocation falls into is the driver's choice and known only afterwards. It is
 * therefore charged after the call, at once: if the block is a new one and does not fit, the
 * allocation is freed again and refused. All others are charged before the call, those between 1
 * and 2 MiB too: most of them need a new block, and what did not is given back.
 *
 * A block that one allocation began and that takes no others, or more than one block, is in a map.
 * A block of small ones has a word in a table: its number, its device, and how many live in it. One
 * compare-and-swap counts an allocation or a free. A block whose place another one has is in the
 * map, too.
 */
#ifndef GPUSLICE_BLOCK_H
#define GPUSLICE_BLOCK_H

#include "grant.h"
#include "map.h"

#define BLOCK_BYTES (2ull << 20)
#define BLOCK_SMALL (1ull << 20) /* allocations up to this size are charged after the call */

#define BLOCK_PLACES 8192  /* in the table: of 16 GiB that lie side by side */
#define BLOCK_PRESENT 1024 /* words of the filter of block_maybe() */

/* What is in the map: an allocation, or a block of `uses` small ones. */
struct block {
	uint64_t bytes, owner;
	CUdevice ordinal;
	uint32_t uses;
	bool piece; /* it is mapped by piece.h, which makes and ends it */
	bool freed; /* of a piece: the program has freed it, and it is to be ended yet */
};

struct blocks {
	uint64_t small[BLOCK_PLACES]; /* see block.c; 0 is free */
	uint64_t owner[BLOCK_PLACES]; /* the context that the block is of */
	struct lock lock;             /* guards `large` */
	MAP(struct block) large;
	uint32_t freed;                  /* pieces that were, and are to be ended yet */
	uint32_t present[BLOCK_PRESENT]; /* how many blocks of both hash here */
};

/* What one allocation of `bytes` > BLOCK_SMALL takes. UINT64_MAX if that overflows. */
uint64_t block_round(uint64_t bytes);

/* The driver made a small allocation: charge its block if that is new. GRANTED, or the caller
 * frees it. */
enum grant_result block_took_small(CUdeviceptr pointer, CUdevice ordinal);

/* The same if its block is not new and in the table; else false, and nothing is changed. */
bool block_took_small_of_known(CUdeviceptr pointer);

/* The driver made another allocation, for which `bytes` were charged: give back what the block was
 * charged already. */
void block_took(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes);

/*
 * Around a free: before the driver's call take the pointer out, false if it is not of linear
 * memory; afterwards give back what is no longer in use, or put the pointer in again if the driver
 * failed. Given back earlier, others could take the bytes while the driver still holds them; taken
 * out later, the address could be in use again by then.
 */
bool block_leave(CUdeviceptr pointer, struct block *block);
void block_left(CUdeviceptr pointer, const struct block *block, CUresult result);

/* Pieces: noted, false if there is no memory for that; looked up by their first address; taken out;
 * marked as freed, after which they are not found. block_leave() says of one that it is one, and
 * leaves it. */
bool block_took_piece(CUdeviceptr pointer, const struct block *piece);
bool block_find_piece(CUdeviceptr pointer, struct block *piece);
bool block_leave_piece(CUdeviceptr pointer);
bool block_free_piece(CUdeviceptr pointer);

/* The pieces of an owner, or of all (0), as far as the list has room. Returns how many there are.
 */
struct block_at {
	CUdeviceptr pointer;
	struct block block;
};
size_t block_pieces(uint64_t owner, bool freed, struct block_at *list, size_t room);

/* False if the pointer is surely not of linear memory. A look at one word: cuMemFreeAsync asks. */
bool block_maybe(CUdeviceptr pointer);

/* See context_leave(): what belongs to one owner belongs to another, or is given back. */
void block_set_owner(struct process *process, uint64_t from, uint64_t to);
void block_owner_gone(struct process *process, uint64_t owner);

#endif
