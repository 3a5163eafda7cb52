/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the storm share: storm.c has the processes and what is compared, storm_kinds.c
 * what one process takes and gives back. */
#ifndef STORM_H
#define STORM_H

#include "driver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST 128 /* processes */
#define HELD 96  /* pieces of memory in each */
#define MIB (1ull << 20)
#define BLOCK (2 * MIB)

enum kind { SMALL, LARGE, MANAGED, POOLED, OWN_POOL, PHYSICAL, MAPPED, ARRAY, MODULE, KINDS };

/* Pools are made and destroyed, also the current one and those in use; the stack's limit is
 * changed, by itself and by launches; threads retain and release the primary context. */
enum deed { POOLS = KINDS, STACKS, RACES, DEEDS };

extern struct shared {
	_Atomic uint32_t pause, stop, wrong;
	_Atomic uint64_t calls[KINDS], refusals, launches, opens, pools, stacks, races;
	struct {
		_Atomic uint32_t ready, idle;
		_Atomic uint64_t steps;
		_Atomic uint64_t holds;   /* valid while idle */
		_Atomic uint64_t unsure;  /* of which the driver says no more than: about */
		_Atomic uint64_t context; /* charged for the one context that lives at a pause */
		_Atomic uint32_t lends;   /* `lent` is a handle of memory that is held */
		CUipcMemHandle lent;
	} of[MOST];
} * shared;

extern unsigned int kinds; /* of memory and of deeds: a bit for each */
extern unsigned int seed;  /* of rand_r() */

void complain(const char *what, uint64_t a, uint64_t b);

/* Whether a call succeeded. Refusals are expected; any other error is not. */
bool done(CUresult result, const char *what);

/* --- storm_kinds.c: there is a place for each piece of memory --- */

/* With a context that is current. */
bool kinds_begin(void);

/* Ask for something of a random kind, for a place that has nothing; give back what a place has. */
void take(int place);
void give(int place);
bool has(int place);

/* Give back all, and have stacks as they were. */
void give_all(void);

/* The address of memory that others can open, or 0. */
CUdeviceptr lendable(int place);

void launch_graph(void);
void change_pools(void);
void change_stack(void);

/* What the driver holds for this process, its context aside; and of that, what nobody can say
 * exactly. */
uint64_t holds(void);
uint64_t unsure(void);

#endif
