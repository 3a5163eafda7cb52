/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stacks of kernels, which the driver calls local memory. A context has room for so many bytes
 * per thread, for all threads that the device can hold at one time: that many times 2,048 times 132
 * on an H100, however small a grid is. A launch of a function with a larger frame raises it to that
 * frame, for good; so does making a graph of such a function, and CU_LIMIT_STACK_SIZE sets it, up
 * or down, and tells what it is (driver observation, H100, 580.159.04).
 */
#ifndef GPUSLICE_STACK_H
#define GPUSLICE_STACK_H

#include "context.h"

/* A call that may raise the current context's, or set it. */
struct raise {
	uint64_t context; /* 0: it does neither */
	CUdevice ordinal;
};

/* Before a call that needs `bytes` per thread, or sets them: charge what that raises. Several that
 * raise one context at the same time are charged once, for the largest. False if it does not fit;
 * then the call is not made. */
bool stack_begin(struct raise *raise, uint64_t bytes);
bool stack_begin_set(struct raise *raise, uint64_t bytes);

/* After it, however it ended: charge what the driver says. */
void stack_end(const struct raise *raise);

#endif
