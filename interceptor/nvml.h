/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_NVML_H
#define GPUSLICE_NVML_H

#include "process.h"
#include "table.h"

#define NVML_NO_QUOTA (-1) /* no quota there, or the process is in no slice */
#define NVML_UNNAMED (-2)  /* no UUID known to gpuslice: shown unchanged */

#define NVML_CACHE_SLOTS 64

/* The ledger device of each NVML handle, valid until NVML is shut down or reloaded. No lock: a
 * slot's handle is written once, and its answer is one word, with its age. */
struct nvml_cache {
	struct {
		/* NULL: free. Store-release; pairs with the load-acquire in recall(). */
		void *device;
		uint64_t answer; /* age << 32 | ledger device + 1; 0: none */
	} slot[NVML_CACHE_SLOTS];
};

/* Returns the ledger device of NVML's, or one of the two above. Sends a request if no process of
 * the slice has used the device yet. `process` is NULL if not attached. */
int nvml_ledger_device(struct process *process, nvmlDevice_t device);

/* Invalidates all cached handles. */
void nvml_forget_devices(void);

#endif
