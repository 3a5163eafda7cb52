/* SPDX-License-Identifier: Apache-2.0 */
/* What the kinds of contexts share. */
#ifndef GPUSLICE_CONTEXT_H
#define GPUSLICE_CONTEXT_H

#include "process.h"

/* After a release or a reset of a primary context, which returned `result`: if the driver says that
 * it is inactive now, all that was in it is gone. Returns `result`. */
CUresult primary_left(CUresult result, CUdevice device);

#endif
