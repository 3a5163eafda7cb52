/* SPDX-License-Identifier: Apache-2.0 */
/* Functions whose launch may take memory: those with a large frame (stack.h), and those of a
 * library that the driver may not have loaded yet. It loads a library at the first use in a
 * context. A function is noted when the program looks it up. */
#ifndef GPUSLICE_FUNCTION_H
#define GPUSLICE_FUNCTION_H

#include "context.h"
#include "lock.h"
#include "map.h"

#define FUNCTION_PLACES 4096

struct function {
	uint32_t frame;   /* bytes per thread */
	bool kernel;      /* of a library: its handle is valid in all contexts */
	bool is_new;      /* a kernel whose library is not loaded yet in some context */
	uint64_t source;  /* its module or library */
	uint64_t context; /* 0: all contexts */
};

struct functions {
	struct lock lock; /* guards `known` */
	MAP(struct function) known;
	uint32_t large; /* functions noted for their frame */
	/* For all functions that hash here: the new ones times FUNCTION_NEW, plus the largest raise
	 * in STACK_UNITs. */
	uint32_t care[FUNCTION_PLACES];
};

#define FUNCTION_NEW (1u << 20)

void function_note(const void *function, uint64_t source, uint32_t frame, bool kernel);

void function_source_gone(uint64_t source);

/* A library was loaded into the current context, where it took `bytes`. */
void function_library_took(uint64_t library, CUdevice ordinal, uint64_t bytes);
bool function_library_is_in(uint64_t context, uint64_t library);

/* Update all kernels after a context was created, in which no library is loaded, or destroyed. */
void function_contexts_changed(void);

/* Get what is noted of a function; false, and all zero, if it is unknown. */
bool function_find(const void *function, struct function *found);

/* Return the driver's value for a function or, if that is NULL, a kernel; 0 if it has none. */
uint32_t function_frame_of(CUfunction function, CUkernel kernel);

/* Return whether a function with a large frame was ever noted. */
bool function_any_large(void);

/* Return true if a launch certainly takes no memory: one comparison. */
bool function_is_plain(const void *function);

#endif
