/* SPDX-License-Identifier: Apache-2.0 */
/* The slice as programs are shown it in place of the card, whomever they ask: CUDA or NVML. */
#ifndef GPUSLICE_VIEW_H
#define GPUSLICE_VIEW_H

#include "process.h"

/* In record mode both are more than any card has: the card is shown. Of a slice in a pool, the
 * smaller figures of the two. */
struct view {
	uint64_t total; /* bytes that are shown at most as the device's memory */
	uint64_t left;  /* bytes that could still be charged: at most these are shown free */
};

/* The view of a ledger device. Without a slice, or a quota on the device (-1), the card's total is
 * shown, and nothing free. */
struct view view_of(int device);

static inline uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

#endif
