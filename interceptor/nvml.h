/* SPDX-License-Identifier: Apache-2.0 */
/* What the hooks of NVML share. */
#ifndef GPUSLICE_NVML_H
#define GPUSLICE_NVML_H

#include "process.h"
#include "table.h"

#define NVML_NO_QUOTA (-1) /* the slice may hold nothing there, or the process is in no slice */
#define NVML_UNNAMED (-2)  /* it has no UUID that gpuslice could know it by: shown as it is */

/* The ledger device of NVML's device: its index, or one of the two above. Asks the enforcer if no
 * process of the slice has met the device yet. `process` may be NULL: attached to nothing. */
int nvml_ledger_device(struct process *process, nvmlDevice_t device);

/* NVML's handles may mean other devices from now on. */
void nvml_forget_devices(void);

#endif
