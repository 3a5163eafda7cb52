/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear memory, which the driver takes in blocks of 2 MiB.
 *
 * Driver observation (H100, 580.159.04): an allocation below 2 MiB shares a block with others of
 * its context, and the block returns to the device with the last of them. A larger one starts on a
 * block and takes whole ones. So blocks in use are charged, and hundreds of small allocations touch
 * the ledger once.
 *
 * The driver chooses the block of a small allocation, so it is charged after the call; if a new
 * block does not fit, the allocation is freed and refused. All others are charged before the call,
 * those between 1 and 2 MiB too: most need a new block, and the charge of the rest is released.
 *
 * A block of small allocations is a word in a table: its number, device and number of allocations.
 * One compare-and-swap counts an allocation or a free. All other blocks are in a map, and so
 * are those without a free place in the table.
 */
#ifndef GPUSLICE_BLOCK_H
#define GPUSLICE_BLOCK_H

#include "grant.h"
#include "map.h"

#define BLOCK_BYTES (2ull << 20)
#define BLOCK_SMALL (1ull << 20) /* allocations up to this size are charged after the call */

#define BLOCK_PLACES 8192  /* of the table: for 16 GiB of adjacent blocks */
#define BLOCK_PRESENT 1024 /* words of block_maybe()'s filter */

/* An allocation, or a block of `uses` small ones. */
struct block {
	uint64_t bytes, owner;
	CUdevice ordinal;
	uint32_t uses;
	bool piece;      /* mapped by piece.h */
	bool freed;      /* a piece that the program freed, not destroyed yet */
	uint32_t serial; /* of a piece: later ones have higher numbers */
};

struct blocks {
	uint64_t small[BLOCK_PLACES]; /* see block.c; 0 is free */
	uint64_t owner[BLOCK_PLACES]; /* contexts that own the blocks */
	struct lock lock;             /* guards `large` */
	MAP(struct block) large;
	uint32_t serial;                 /* of the last piece */
	uint32_t freed;                  /* number of pieces with `freed` */
	uint32_t present[BLOCK_PRESENT]; /* the filter: blocks that hash here */
};

/* Return what an allocation of `bytes` > BLOCK_SMALL takes; UINT64_MAX on overflow. */
uint64_t block_round(uint64_t bytes);

/* Charge a small allocation's block, if it is new. If this does not return GRANTED, the caller
 * frees the allocation. */
enum grant_result block_took_small(CUdeviceptr pointer, CUdevice ordinal);

/* The same for a block in the table; else return false and change nothing. */
bool block_took_small_of_known(CUdeviceptr pointer);

/* Record any other allocation, for which `bytes` were charged. If its block was charged already,
 * release them. */
void block_took(CUdeviceptr pointer, CUdevice ordinal, uint64_t bytes);

/*
 * Enclose a free. block_leave() removes the pointer before the driver's call; false if it is not
 * linear memory. block_left() releases what is no longer in use, or restores the pointer if the
 * driver failed. Released earlier, others could take bytes that the driver still holds; removed
 * later, the address could be in use again.
 */
bool block_leave(CUdeviceptr pointer, struct block *block);
void block_left(CUdeviceptr pointer, const struct block *block, CUresult result);

/* Record a piece (false without memory), find it by its first address, remove it if no later one
 * has its address, mark it as freed: then it is not found. block_leave() reports a piece without
 * removing it. */
bool block_took_piece(CUdeviceptr pointer, const struct block *piece);
bool block_find_piece(CUdeviceptr pointer, struct block *piece);
bool block_leave_piece(CUdeviceptr pointer, uint32_t serial);
bool block_free_piece(CUdeviceptr pointer);

/* List up to `room` pieces of an owner, or of all (0); with `freed`, only freed ones. Return their
 * number. */
struct block_at {
	CUdeviceptr pointer;
	struct block block;
};
size_t block_pieces(uint64_t owner, bool freed, struct block_at *list, size_t room);

/* Return false if a pointer is certainly not linear memory. Reads one word, for cuMemFreeAsync. */
bool block_maybe(CUdeviceptr pointer);

/* Give an owner's blocks to another, or release them: see leaving.h. */
void block_set_owner(uint64_t from, uint64_t to);
void block_owner_gone(uint64_t owner);

#endif
