/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stacks of kernels, called local memory by the driver. A context reserves a stack for each
 * thread that the device can hold at one time, however small the grid: 2,048 times 132 on an H100.
 * Launching a function with a larger frame, or adding it to a graph, raises the size permanently.
 * CU_LIMIT_STACK_SIZE reads it, and sets it up or down (driver observation, H100, 580.159.04).
 */
#ifndef GPUSLICE_STACK_H
#define GPUSLICE_STACK_H

#include "context.h"

/* A call that may change the current context's stack size. */
struct raise {
	uint64_t context; /* 0: the call changes nothing */
	CUdevice ordinal;
};

/* Charges the increase before a call that needs `bytes` per thread, or sets them (`set`).
 * Concurrent increases in one context are charged once, for the largest. False if it does not fit:
 * the call is not made. */
bool stack_begin(struct raise *raise, uint64_t bytes, bool set);

/* Corrects the charge to the driver's figure after the call, even a failed one. */
void stack_end(const struct raise *raise);

#endif
