/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_NVML_H
#define GPUSLICE_NVML_H

#include "lock.h"
#include "map.h"
#include "process.h"
#include "table.h"

#define NVML_NO_QUOTA (-1) /* no quota there, or the process is in no slice */
#define NVML_UNNAMED (-2)  /* no UUID known to gpuslice: shown unchanged */

struct nvml_known {
	uint32_t age; /* older ones are invalid: NVML was shut down or reloaded */
	int index;    /* of the ledger device */
};

struct nvml_cache {
	struct lock lock;
	MAP(struct nvml_known) devices; /* by NVML's handle */
};

/* Returns the ledger device of NVML's, or one of the two above. Sends a request if no process of
 * the slice has used the device yet. `process` is NULL if not attached. */
int nvml_ledger_device(struct process *process, nvmlDevice_t device);

/* Invalidates all cached handles. */
void nvml_forget_devices(void);

#endif
