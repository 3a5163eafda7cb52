/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contexts of this process: what each was charged for, and whose what is allocated is. A
 * context is known by its handle; what belongs to it has that as its owner.
 */
#ifndef GPUSLICE_CONTEXT_H
#define GPUSLICE_CONTEXT_H

#include "block.h"
#include "lock.h"
#include "map.h"
#include "process.h"

/* Local memory of kernels is counted in bytes per thread. So much comes with a context (driver
 * observation, H100, 580.159.04: the default of CU_LIMIT_STACK_SIZE). */
#define STACK_DEFAULT 1024u
#define STACK_UNIT 16u

/* By how much a context is raised that has room for so many bytes per thread, in those units. */
static inline uint32_t stack_units(uint32_t bytes)
{
	return bytes > STACK_DEFAULT ? (bytes - STACK_DEFAULT + STACK_UNIT - 1) / STACK_UNIT : 0;
}

/*
 * Return the bytes that a context takes for its largest number of streams at one time. A destroyed
 * stream's memory is kept for the next stream, until the context ends (driver observation, H100,
 * 580.159.04: 54 MiB for 100 streams, 546 for 1,000, 5,468 for 10,000).
 */
static inline uint64_t context_stream_bytes(uint32_t streams)
{
	return 560ull * 1024 * streams & ~(uint64_t)(BLOCK_BYTES - 1);
}

struct context {
	CUdevice ordinal;
	uint64_t bytes;       /* charged for the context itself */
	uint64_t heap;        /* charged for the heap of kernels */
	uint64_t stack_bytes; /* charged for local memory beyond what comes with a context */
	uint32_t stack;   /* bytes per thread that its local memory has room for; 0: not asked */
	uint32_t streams; /* in it, and calls under way that make one */
	uint32_t most_streams; /* that were charged; the memory of destroyed ones is reused */
	uint32_t raises;       /* calls under way that may raise it, no further than is charged */
	uint64_t primary;      /* of a green one: the context that what is allocated in it is of */
};

struct contexts {
	struct lock lock;       /* guards `known` */
	struct lock stack_lock; /* held while stacks are charged: see stack.c */
	MAP(struct context) known;
	bool green; /* one was ever made from a green one */
	/* By how much the local memory of each of them was raised at least, in units of
	 * STACK_UNIT: a function that needs no more takes none at its launch. */
	uint32_t raised;
	struct lock primary_lock[PROCESS_ORDINALS]; /* held while a primary context comes or goes */
	uint64_t primary[PROCESS_ORDINALS];         /* the handle of the one that is active */
};

/* A context as an owner of memory: what is allocated in a green one is its primary context's. */
uint64_t context_owner(CUcontext context);

/* The one that is current; 0 if there is none. */
uint64_t context_current(void);

/* Make another one current, for a while: true if it was not, and context_pop() is to undo that.
 * NULL is the one that is current. */
bool context_push(CUcontext other);
void context_pop(bool pushed);

/* Note a context; what was known under its handle is forgotten. */
void context_note(uint64_t handle, const struct context *context);

/* Whether the process has no context on the device yet, and makes none. */
bool context_is_first(CUdevice ordinal);

/* Whether any context is known, and `has` says so of each. Green ones are not asked: what is in
 * them is in their primary context. */
bool context_all(bool (*has)(uint64_t handle, uint64_t argument), uint64_t argument);

/* All that are known but green ones, as far as the list has room. Returns how many there are. */
size_t context_list(uint64_t *handles, size_t room);

/* What is known of a context; false, and all zero, if nothing is. */
bool context_get(uint64_t handle, struct context *context);
bool context_take(uint64_t handle, struct context *context);

/*
 * Around the destruction of a context, in the order that block.h explains for block_leave(): all
 * that belongs to it is set apart before the driver's call, since the handle may be another
 * context's as soon as that returns; then it is given back, or put back if the driver failed.
 */
struct leaving {
	uint64_t handle;
	bool known;
	struct context context;
};
struct leaving context_leave(uint64_t handle);
CUresult context_left(const struct leaving *leaving, CUresult result);

/* Change what is known of a context, which is noted if it is not known. The first returns what was
 * charged for the heap before. */
uint64_t context_set_heap(uint64_t handle, CUdevice ordinal, uint64_t bytes);
/* Count a stream that is to be made in a context. Return the largest number of streams so far,
 * without and with this one. */
struct streams {
	uint32_t before, after;
};
struct streams context_add_stream(uint64_t handle, CUdevice ordinal);
/* Uncount a stream, and its charge if it was not `charged`. */
void context_drop_stream(uint64_t handle, bool charged);
/* Its local memory has room for `stack` bytes per thread. */
void context_set_stack(uint64_t handle, CUdevice ordinal, uint32_t stack);
/* A call is under way that may raise it; `more` bytes were charged for that. */
void context_raise_begin(uint64_t handle, CUdevice ordinal, uint64_t more);
/* It ended, and there is room for `stack` bytes per thread, which take `bytes`. So much stays
 * charged, or what others may raise it to: *before is what was, *after what is. False if the
 * context is gone, and its charge with it. */
bool context_raise_end(uint64_t handle, uint32_t stack, uint64_t bytes, uint64_t *before,
                       uint64_t *after);

/* Whether a device's primary context is active. */
bool primary_active(CUdevice device);

/* With its primary_lock held, after a call that may have ended it and returned `result`: if the
 * driver says that it is inactive now, all that was in it is gone. Returns `result`. */
CUresult primary_left(CUresult result, CUdevice device);

#endif
