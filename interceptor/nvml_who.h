/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the slice's processes among NVML's. In a container NVML returns pids of the host or of the
 * container, depending on driver and kernel. A lane has both.
 */
#ifndef GPUSLICE_NVML_WHO_H
#define GPUSLICE_NVML_WHO_H

#include "nvml.h"

#include <stdbool.h>
#include <stdint.h>

struct who {
	struct process *process; /* NULL: in no slice */
	int device;              /* of the ledger; negative: no lane holds memory there */
	bool host_pids;          /* NVML's pids are the enforcer's */
};

/* Returns false if NVML's lists of that device are shown unchanged. */
bool who_look(nvmlDevice_t device, struct who *who);

/* Sets host_pids from `count` pids of NVML, `stride` bytes apart: all are in the namespace in which
 * more of them are ours. (Deciding for each alone would take the host's process 3000 for the
 * container's.) On a tie, a pid that does not exist here decides. */
void who_see_kind(struct who *who, const unsigned char *pids, size_t stride, unsigned int count);

/* Returns the lane of the process with NVML's pid; 0 if not in the slice. */
uint32_t who_lane(const struct who *who, uint32_t pid);

/* Returns the number of lanes, from 1, including free and dead ones. */
uint32_t who_lanes(const struct who *who);

bool who_is_dead(const struct who *who, uint32_t lane);

/* Returns the pid in the caller's namespace, or the enforcer's if it has none there. */
uint32_t who_pid(const struct who *who, const struct ledger_lane *lane);

#endif
