/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the rows of stacks: frames of launches, and of graphs. */
#ifndef ROWS_STACK_H
#define ROWS_STACK_H

#include "rows_code.h"

#define FRESH_STACK 1024 /* bytes of each thread, in a fresh context */

static inline long long stacks(size_t frame)
{
	long long threads = card_threads();

	if (!threads)
		failed("the card does not say how many threads it can run");
	return ((long long)frame - FRESH_STACK) * threads;
}

/* All frames of these rows. The last two fit no quota of 16 GiB or less. */
static const size_t frames[] = {1024, 2048, 4096, 65536, 204800, 0};

static inline CUfunction function_of(CUmodule module, size_t frame)
{
	CUfunction function = NULL;
	char name[32];

	snprintf(name, sizeof(name), frame ? "frame%zu" : "empty", frame);
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

/* Shrink local memory to a fresh context's, and check the charge of the rest. */
static inline void shrink_stacks_but(long long bytes)
{
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, FRESH_STACK));
	expect_charge("the stack's limit lowered", bytes);
}

static inline void shrink_stacks(void)
{
	shrink_stacks_but(0);
}

static inline size_t stack_limit(void)
{
	size_t bytes = 0;

	OK(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
	return bytes;
}

/* The row's first context is current, without stacks. */
static inline void still_here(void)
{
	CUcontext current = NULL;

	OK(cuCtxGetCurrent(&current));
	if (current != own_context)
		failed("another context is current");
	if (stack_limit() != FRESH_STACK)
		failed("the stack's limit is %zu here", stack_limit());
}

#endif
