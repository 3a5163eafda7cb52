/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a context takes of its card by itself, beyond its first cost: for code, local memory,
 * streams and large graphs. It ends with the context.
 *
 * For a green context each function uses the primary one. After OUT_OF_MEMORY nothing has changed.
 */
#ifndef FAKECUDA_OVERHEAD_H
#define FAKECUDA_OVERHEAD_H

#include "driver.h"

/* The context that holds this one's memory. */
static inline CUcontext context_holder(CUcontext context)
{
	return context->parent ? context->parent : context;
}

/* Takes bytes that no program requested, until the context is destroyed. */
CUresult overhead_keep(CUcontext context, uint64_t bytes);

/* The arrays of one module. */
CUresult overhead_take_code(CUcontext context, uint64_t bytes);
void overhead_give_code(CUcontext context, uint64_t bytes);

/* For a new context: it has only the stacks, which are part of its cost. */
void overhead_start(CUcontext context, uint64_t stack);
/* True if a card of this size could have stacks of this size at all. */
bool overhead_stack_exists(const struct CUctx_st *context, uint64_t bytes);
/* Stacks of this size for all threads that run on the card at a time. */
CUresult overhead_set_stack(CUcontext context, uint64_t bytes);

/* The memory of streams is kept for later ones. */
CUresult overhead_add_stream(CUcontext context);
void overhead_drop_stream(CUcontext context);

/* Nodes of an executable graph. Their memory is kept for later graphs. */
CUresult overhead_add_nodes(CUcontext context, uint64_t count);
void overhead_drop_nodes(CUcontext context, uint64_t count);

#endif
