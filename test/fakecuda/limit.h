/* SPDX-License-Identifier: Apache-2.0 */
/* What a context lets its kernels use. Only the malloc heap takes memory of the card here. */
#ifndef FAKECUDA_LIMIT_H
#define FAKECUDA_LIMIT_H

#include "driver.h"

/* The values of a context that has just been made. */
void limits_start(CUcontext context);

/* For a kernel that uses it: the first takes the heap, and its size is fixed from then on. */
CUresult limit_take_heap(CUcontext context);
/* The same of the printf FIFO, which takes nothing. */
void limit_take_fifo(CUcontext context);

#endif
