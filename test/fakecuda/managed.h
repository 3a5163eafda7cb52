/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory. Its pages exist from the first access on, and take VRAM once the card has
 * accessed them.
 *
 * Observed: 64 MiB take nothing, 128 MiB once they were filled, and 64 MiB after they were freed.
 * The kernel module fetches chunks of 2 MiB in batches of 64. It returns each chunk when its page
 * goes, but keeps the rest of a batch for the next access.
 */
#ifndef FAKECUDA_MANAGED_H
#define FAKECUDA_MANAGED_H

#include "address.h"
#include "driver.h"

#define MANAGED_CHUNK (2 * MiB)

/* For a caller that keeps pages on the card itself: takes up to `chunks`, and returns their
 * number. */
unsigned managed_take(struct device *device, unsigned chunks);
void managed_give(struct device *device, unsigned chunks);

CUresult managed_allocate(CUcontext context, size_t size, CUdeviceptr *out);
void managed_free(struct range *range);
/* The card has used these bytes; [start, start + size) lies in the range. */
void managed_touch(struct range *range, CUdeviceptr start, size_t size);

#endif
