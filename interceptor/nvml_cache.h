/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger device of each NVML handle, valid until NVML is shut down or reloaded.
 *
 * No lock: a slot's handle is written once, and its answer is one word, with its age. A forked
 * child starts with an empty cache.
 */
#ifndef GPUSLICE_NVML_CACHE_H
#define GPUSLICE_NVML_CACHE_H

#include <stdint.h>

#define NVML_CACHE_SLOTS 64

struct nvml_cache {
	struct {
		void *
		    device; /* NULL: free. Store-release; pairs with the load-acquire in recall() */
		uint64_t answer; /* age << 32 | ledger device + 1; 0: none */
	} slot[NVML_CACHE_SLOTS];
};

#endif
