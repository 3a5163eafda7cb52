/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_POOL_H
#define GPUSLICE_POOL_H

#include "process.h"

/*
 * Give back what the process's pools on this device do not need: trim their free memory, and settle
 * their charges to what they still reserve. Returns whether any bytes came back.
 */
bool pool_give_back(struct process *process, CUdevice ordinal);

/* Settle the charges of all pools on this device (all devices if it is -1) to what they
 * reserve now. */
void pool_settle_all(struct process *process, CUdevice ordinal);

#endif
