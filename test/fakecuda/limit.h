/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context lets its kernels use: stacks take memory of the card as soon as they are larger
 * than the least, the malloc heap and the printf FIFO when a kernel needs them.
 */
#ifndef FAKECUDA_LIMIT_H
#define FAKECUDA_LIMIT_H

#include "driver.h"

#define STACK_LEAST 1024

/* The values of a context that has just been made. */
void limits_start(CUcontext context);

/* For a kernel with that frame: the limit is at least that from now on. */
CUresult limit_fit_stack(CUcontext context, uint64_t frame);
/* For a kernel that uses it: the first takes the heap, and its size is fixed from then on. */
CUresult limit_take_heap(CUcontext context);
/* The same of the printf FIFO, which takes nothing then: */
void limit_take_fifo(CUcontext context);
/* its memory is taken when a module that prints is loaded. */
CUresult limit_back_fifo(CUcontext context);

#endif
