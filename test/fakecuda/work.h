/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that run. Most have ended when their launch returns. A longer one continues in a thread
 * of this process, a little at a time with the driver's lock, and later launches wait behind it. So
 * kernels of a process do not overlap, and a wait for an endless kernel ends with the process.
 */
#ifndef FAKECUDA_WORK_H
#define FAKECUDA_WORK_H

#include "ptx.h"
#include "stream.h"

/* Takes ownership of the run, and of the image of its kernel. */
void work_give(CUcontext context, CUstream stream, struct ptx_run *run, struct image *image);
/* The number of the last run. */
uint64_t work_last(void);
/* True if a run of the stream, up to that number, has not ended. A default stream stands for all of
 * the context's, and a NULL context for any. */
bool work_is_left(CUcontext context, CUstream stream, uint64_t last);
/*
 * Waits until none is left; other threads get the lock in between. Returns a kernel's fault in the
 * context, which all of its later calls return, too.
 */
CUresult work_wait(CUcontext context, CUstream stream, uint64_t last);
/* For all streams. */
CUresult work_wait_all(CUcontext context);
/* For a destroyed stream: its kernels continue. */
void work_forget_stream(CUstream stream);
/* For a destroyed context, with the kernels in it. */
void work_drop(CUcontext context);

#endif
