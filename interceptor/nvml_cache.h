/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ledger device NVML's handle of a device is, so that its UUID is asked for once. A handle
 * means the same device until NVML is shut down or loaded anew.
 *
 * Without a lock: a slot's handle is written once and stays, and what it means is one word, with
 * the age of the answer in it. A child of fork begins with an empty one.
 */
#ifndef GPUSLICE_NVML_CACHE_H
#define GPUSLICE_NVML_CACHE_H

#include <stdint.h>

#define NVML_CACHE_SLOTS 64

struct nvml_cache {
	struct {
		void *device;    /* NULL: free. Release; pairs with the acquire of who finds it */
		uint64_t answer; /* age << 32 | ledger device + 1; 0 is none */
	} slot[NVML_CACHE_SLOTS];
};

#endif
