/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that run. Most are at their end when their launch returns; one that is longer goes on in
 * a thread of this process, a little at a time and with the driver's lock, and what is launched
 * after it waits behind it. So no two kernels of a process run at a time, and whoever waits for one
 * that has no end waits until the process is killed.
 */
#ifndef FAKECUDA_WORK_H
#define FAKECUDA_WORK_H

#include "ptx.h"
#include "stream.h"

/* Takes the run, and the image that its kernel is of. */
void work_give(CUcontext context, CUstream stream, struct ptx_run *run, struct image *image);
/* The number of the last that was given. */
uint64_t work_last(void);
/* Whether one of the stream, up to that number, is not at its end. A default stream's are all of
 * the context's, and a NULL context stands for any. */
bool work_is_left(CUcontext context, CUstream stream, uint64_t last);
/*
 * Waits until none is left, and gives the lock to others meanwhile. The answer is what a kernel of
 * the context did wrong, which all of its later calls answer, too.
 */
CUresult work_wait(CUcontext context, CUstream stream, uint64_t last);
/* For all of them. */
CUresult work_wait_all(CUcontext context);
/* For a stream that goes: its kernels run on. */
void work_forget_stream(CUstream stream);
/* For a context that goes, with what runs in it. */
void work_drop(CUcontext context);

#endif
