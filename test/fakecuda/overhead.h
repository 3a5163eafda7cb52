/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context takes of its card by itself, beyond what it cost in the beginning: for code, local
 * memory, streams and large graphs. All of it is gone with the context.
 *
 * Each function takes a green context for its primary one. OUT_OF_MEMORY: nothing has changed.
 */
#ifndef FAKECUDA_OVERHEAD_H
#define FAKECUDA_OVERHEAD_H

#include "driver.h"

/* The context that holds what is taken in this one. */
static inline CUcontext context_holder(CUcontext context)
{
	return context->parent ? context->parent : context;
}

/* Bytes that no program asked for, and that stay until the context goes. */
CUresult overhead_keep(CUcontext context, uint64_t bytes);

/* The arrays of one module. */
CUresult overhead_take_code(CUcontext context, uint64_t bytes);
void overhead_give_code(CUcontext context, uint64_t bytes);

/* Of a context that has just been made: nothing but the stacks, which are part of its cost. */
void overhead_start(CUcontext context, uint64_t stack);
/* Whether a card of this size could have stacks of this size at all. */
bool overhead_stack_exists(const struct CUctx_st *context, uint64_t bytes);
/* Stacks of this size for all threads that the card can run at a time. */
CUresult overhead_set_stack(CUcontext context, uint64_t bytes);

/* What streams took is kept for the next ones. */
CUresult overhead_add_stream(CUcontext context);
void overhead_drop_stream(CUcontext context);

/* Nodes of an executable graph. What they took is kept for the next graph. */
CUresult overhead_add_nodes(CUcontext context, uint64_t count);
void overhead_drop_nodes(CUcontext context, uint64_t count);

#endif
