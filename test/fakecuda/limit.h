/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context lets its kernels use: stacks take memory of the card as soon as they are larger
 * than the least, the malloc heap and the printf FIFO when a kernel needs them.
 */
#ifndef FAKECUDA_LIMIT_H
#define FAKECUDA_LIMIT_H

#include "driver.h"

/* The values of a context that has just been made. */
void limits_start(CUcontext context);

/* For a kernel with that frame: there is at least that much stack from now on. */
CUresult limit_fit_stack(CUcontext context, uint64_t frame);
/* For a kernel that uses it: the first takes the heap, and its size is fixed from then on. */
CUresult limit_take_heap(CUcontext context);
/* The same of the printf FIFO, which takes nothing then: */
void limit_take_fifo(CUcontext context);
/* its memory is taken when a module that prints is loaded. *code: what more the module takes. */
CUresult limit_back_fifo(CUcontext context, uint64_t *code);

#endif
