/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context's limits for its kernels. Stacks take memory of the card once they are larger than the
 * minimum, the malloc heap and the printf FIFO when a kernel needs them.
 */
#ifndef FAKECUDA_LIMIT_H
#define FAKECUDA_LIMIT_H

#include "driver.h"

/* The values of a new context. */
void limits_start(CUcontext context);

/* For a kernel with that frame: makes the stack at least that large from now on. */
CUresult limit_fit_stack(CUcontext context, uint64_t frame);
/* For a kernel that uses it: the first one takes the heap, and fixes its size. */
CUresult limit_take_heap(CUcontext context);
/* The same for the printf FIFO, which takes nothing then: */
void limit_take_fifo(CUcontext context);
/* its memory is taken when a module that prints is loaded. *code: bytes that the module takes in
 * addition. */
CUresult limit_back_fifo(CUcontext context, uint64_t *code);

#endif
