/* SPDX-License-Identifier: Apache-2.0 */
/* The contexts of this process, by handle: what was charged for each, and which memory each
 * owns. */
#ifndef GPUSLICE_CONTEXT_H
#define GPUSLICE_CONTEXT_H

#include "block.h"
#include "lock.h"
#include "map.h"
#include "process.h"

/* The default of CU_LIMIT_STACK_SIZE: a new context has this local memory, in bytes per thread
 * (driver observation, H100, 580.159.04). */
#define STACK_DEFAULT 1024u
#define STACK_UNIT 16u

/* Return by how much local memory with room for `bytes` per thread exceeds the default, in
 * STACK_UNITs. */
static inline uint32_t stack_units(uint32_t bytes)
{
	return bytes > STACK_DEFAULT ? (bytes - STACK_DEFAULT + STACK_UNIT - 1) / STACK_UNIT : 0;
}

/* Return what a context takes for its largest number of streams at one time. A destroyed stream's
 * memory is kept for the next, until the context ends (driver observation, H100, 580.159.04: 54 MiB
 * for 100 streams, 546 for 1,000, 5,468 for 10,000). */
static inline uint64_t context_stream_bytes(uint32_t streams)
{
	return 560ull * 1024 * streams & ~(uint64_t)(BLOCK_BYTES - 1);
}

struct context {
	CUdevice ordinal;
	uint64_t bytes;       /* charged for the context itself */
	uint64_t heap;        /* charged for the heap of kernels */
	uint64_t stack_bytes; /* charged for local memory beyond what comes with a context */
	uint32_t stack;   /* bytes per thread that its local memory has room for; 0: not read yet */
	uint32_t streams; /* that exist, and calls under way that create one */
	uint32_t most_streams; /* that were charged; the memory of destroyed ones is reused */
	uint32_t raises;  /* calls under way that may raise the stack, at most to what is charged */
	uint64_t primary; /* of a green context: the owner of memory allocated in it; else 0 */
};

struct contexts {
	struct lock lock;       /* guards `known` */
	struct lock stack_lock; /* held while stacks are charged: see stack.c */
	MAP(struct context) known;
	bool green; /* a green context was ever noted */
	/* The smallest raise of all contexts, in STACK_UNITs: a function that needs no more takes
	 * no memory at its launch. */
	uint32_t raised;
	struct primary {
		struct lock lock; /* held to create or end it */
		uint64_t handle;  /* 0: inactive */
	} primary[PROCESS_ORDINALS];
};

/* Return the owner of memory in a context: for a green one, its primary context. */
uint64_t context_owner(CUcontext context);

/* Return the owner of memory in the current context; 0 without one. */
uint64_t context_current(void);

/* Makes another context current from here to the end of the block; NULL: changes nothing. */
#define IN_CONTEXT(other)                                                                          \
	bool context_pushed __attribute__((cleanup(context_pop))) = context_push(other)
bool context_push(CUcontext other);
void context_pop(const bool *pushed);

/* Behind the gate: enter an owner's context, and leave it; wait there for all work. */
CUresult context_enter(uint64_t owner);
void context_leave(void);
CUresult context_wait(uint64_t owner);

/* Note a context, in place of any that was noted under its handle. */
void context_note(uint64_t handle, const struct context *context);

/* Return whether the process has a context on the device. */
bool context_any(CUdevice ordinal);

/* Return whether there are contexts, and `has` is true of each. Green ones are skipped: their
 * contents are in their primary context. */
bool context_all(bool (*has)(uint64_t handle, uint64_t argument), uint64_t argument);

/* List up to `room` contexts, without green ones. Return their number. */
size_t context_list(uint64_t *handles, size_t room);

/* Get what is known of a context; false, and all zero, if it is unknown. context_take() also
 * forgets it. */
bool context_get(uint64_t handle, struct context *context);
bool context_take(uint64_t handle, struct context *context);

/* The calls with an `ordinal` note a context that is unknown. This one returns the former bytes of
 * its heap. */
uint64_t context_set_heap(uint64_t handle, CUdevice ordinal, uint64_t bytes);
/* Count a stream that is to be created. Return the largest number so far, without and with it. */
struct streams {
	uint32_t before, after;
};
struct streams context_add_stream(uint64_t handle, CUdevice ordinal);
/* Uncount a stream, and its charge if it was not `charged`. */
void context_drop_stream(uint64_t handle, bool charged);
/* Set the bytes per thread that local memory has room for. */
void context_set_stack(uint64_t handle, CUdevice ordinal, uint32_t stack);
/* Note a call that may raise the stack, for which `more` bytes were charged. */
void context_raise_begin(uint64_t handle, CUdevice ordinal, uint64_t more);
/* Note the end of that call: there is room for `stack` bytes per thread, which take `bytes`. These
 * stay charged, or more if calls under way may raise it: *before and *after. Return false if the
 * context is gone, and its charge with it. */
bool context_raise_end(uint64_t handle, uint32_t stack, uint64_t bytes, uint64_t *before,
                       uint64_t *after);

/* Return a device's primary context; NULL if there is no such device. */
struct primary *context_primary(CUdevice device);
/* Return whether the driver has it active. */
bool context_primary_active(CUdevice device);

#endif
