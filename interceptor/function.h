/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that kernels are launched by, as far as a launch of them may take memory: those
 * with a large frame (stack.h), and those of a library that the driver may not have loaded yet,
 * which it does at the first use in a context. They are noted when they are looked up.
 */
#ifndef GPUSLICE_FUNCTION_H
#define GPUSLICE_FUNCTION_H

#include "context.h"
#include "lock.h"
#include "map.h"
#include "stack.h"

#define FUNCTION_PLACES 4096

struct function {
	uint32_t frame;   /* bytes per thread */
	bool kernel;      /* of a library, by its handle for all contexts */
	bool is_new;      /* a kernel whose library is not loaded yet, in some context */
	uint64_t source;  /* the module or library that it is of */
	uint64_t context; /* 0: of all contexts */
};

struct functions {
	struct lock lock; /* guards `known` */
	MAP(struct function) known;
	uint32_t large; /* how many were noted for their frame */
	/* For all functions that hash here: how many are new, above FUNCTION_NEW, and by how much
	 * the largest raises a context, in units of STACK_UNIT. */
	uint32_t care[FUNCTION_PLACES];
};

#define FUNCTION_NEW (1u << 20)

/* Note a function that was looked up in a module, or a library's kernel. */
void function_note(const void *function, uint64_t source, uint32_t frame, bool kernel);

/* Forget those of a module or a library that was unloaded. */
void function_source_gone(uint64_t source);

/* A library was loaded into a context. */
void function_library_loaded(uint64_t library);

/* A context was made, in which no library is loaded yet, or one is gone. */
void function_contexts_changed(void);

/* The frame of a function that was noted, the module or library that it is of, and the context;
 * else 0. */
uint32_t function_frame(const void *function);
uint64_t function_source(const void *function);
uint64_t function_context(const void *function);

/* What the driver says of the frame of a function, or, if that is NULL, of a kernel; 0 if it does
 * not. */
uint32_t function_frame_of(CUfunction function, CUkernel kernel);

/* Whether any function was noted for its frame. */
bool function_any_large(void);

/* Whether a launch of it surely takes no memory: one comparison. */
bool function_is_plain(const void *function);

/* A launch of one that is not. */
struct launch {
	bool loads; /* it is recorded, and the driver may load its library for that */
	struct raise raise;
};

/* Whether it may take memory in that context (NULL: the current one). Most do not: the kernel's
 * library is loaded there, and not in another context that the process has. */
bool launch_may_take(const void *function, CUcontext context);

/* Before it, in its context: charge what it raises, and have its library loaded, as the launch
 * would; if it is only recorded, do neither. False if that does not fit; then the launch is not
 * made. */
bool launch_begin(struct launch *launch, const void *function, bool recorded);

/* After it, in its context, also if it was not made. (A library that was loaded for it stays, as
 * one that was used.) */
void launch_end(const struct launch *launch);

#endif
