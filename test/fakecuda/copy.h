/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_COPY_H
#define FAKECUDA_COPY_H

#include "driver.h"

/* True if the card may access [start, start + size): it is in one allocation, or all mapped. */
bool copy_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write);
/* The host's view of a device range that may be accessed, or NULL if it has none. */
void *copy_view(CUdeviceptr start, size_t size);

#endif
