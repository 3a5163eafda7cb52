/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the processes that NVML names are of the slice. In a container NVML gives pids of the
 * host, or the container's own, by driver and kernel; a lane of the ledger has both.
 */
#ifndef GPUSLICE_NVML_WHO_H
#define GPUSLICE_NVML_WHO_H

#include "nvml.h"

#include <stdbool.h>
#include <stdint.h>

/* Whose lanes are looked at, and how NVML counts processes. */
struct who {
	struct process *process; /* NULL: in no slice */
	int device;              /* of the ledger; negative: no lane holds anything there */
	bool host_pids;          /* NVML's pids are the enforcer's, not the caller's */
};

/* False if NVML's lists of that device are shown as they are. */
bool who_look(nvmlDevice_t device, struct who *who);

/*
 * Set host_pids by `count` pids of NVML's, `stride` bytes apart. All of NVML's pids are of one
 * kind; it is the kind by which more of them are ours. To ask this of each by itself would take
 * process 3000 of the host for process 3000 of the container. If both are as many, a pid that is
 * nobody's here tells.
 */
void who_see_kind(struct who *who, const unsigned char *pids, size_t stride, unsigned int count);

/* The lane of the process that NVML gave the pid of, or 0 if it is none of the slice's. */
uint32_t who_lane(const struct who *who, uint32_t pid);

/* How many lanes there are, from 1 on, with free ones and dead ones. */
uint32_t who_lanes(const struct who *who);

bool who_is_dead(const struct who *who, uint32_t lane);

/* The pid of a lane's process as the caller knows it, or the enforcer's if it does not. */
uint32_t who_pid(const struct who *who, const struct ledger_lane *lane);

#endif
