/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that may end a context. Its memory gets another owner before the driver's call: another
 * context may get the handle as soon as that returns. Afterwards the memory is released, or its
 * owner restored if the driver failed (block.h explains the order).
 */
#ifndef GPUSLICE_LEAVING_H
#define GPUSLICE_LEAVING_H

#include "context.h"

/* Makes the call that destroys the context. */
CUresult leaving_context(CUresult (*call)(CUcontext context), CUcontext context);

/* Enclose a call that may end the last use of a primary context. The first returns NULL if there is
 * no such device; the second returns `result`. */
struct primary *leaving_primary(CUdevice device);
CUresult left_primary(struct primary *primary, CUdevice device, CUresult result);

#endif
