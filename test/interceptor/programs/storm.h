/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the storm: storm.c has the processes and the comparison, storm_kinds.c one process's
 * allocations. */
#ifndef STORM_H
#define STORM_H

#include "driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST 128 /* processes */
#define HELD 96  /* allocations in each */
#define MIB (1ull << 20)
#define BLOCK (2 * MIB)

enum kind { SMALL, LARGE, MANAGED, POOLED, OWN_POOL, PHYSICAL, MAPPED, ARRAY, MODULE, KINDS };

/* Pools are created and destroyed, also the current one and those in use; the stack limit changes,
 * by itself and by launches; threads retain and release the primary context. */
enum deed { POOLS = KINDS, STACKS, RACES, DEEDS };

extern struct shared {
	_Atomic uint32_t pause, stop, wrong;
	_Atomic uint64_t calls[KINDS], refusals, launches, opens, pools, stacks, races;
	struct {
		_Atomic uint32_t ready, idle;
		_Atomic uint64_t steps;
		_Atomic uint64_t holds;   /* valid while idle */
		_Atomic uint64_t unsure;  /* part of that which is known only roughly */
		_Atomic uint64_t context; /* charge of the one context that lives at a pause */
		_Atomic uint32_t lends;   /* `lent` is a handle of allocated memory */
		CUipcMemHandle lent;
	} of[MOST];
} * shared;

extern unsigned int kinds; /* of memory and of deeds: a bit for each */
extern unsigned int seed;  /* of rand_r() */

void complain(const char *what, uint64_t a, uint64_t b);

bool done(CUresult result, const char *what);

/* --- storm_kinds.c: each allocation has a place --- */

bool kinds_begin(void);

/* Allocate memory of a random kind for an empty place; free a place's memory. */
void take(int place);
void give(int place);
bool has(int place);

void give_all(void);

/* The address of memory that other processes can open, or 0. */
CUdeviceptr lendable(int place);

void launch_graph(void);
void change_pools(void);
void change_stack(void);

/* The bytes that the driver holds for this process, without its context; and the part of them that
 * is not known exactly. */
uint64_t holds(void);
uint64_t unsure(void);

#endif
