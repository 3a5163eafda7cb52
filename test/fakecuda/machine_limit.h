/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the memory that a cgroup's processes may hold of a card together, as set by
 * nvmlDeviceSetMemoryLimits_v1.
 *
 * The use of a limit is not stored: it is the sum over the live processes in the cgroup and below.
 * A limit ends with its cgroup. There are no soft limits.
 */
#ifndef FAKECUDA_MACHINE_LIMIT_H
#define FAKECUDA_MACHINE_LIMIT_H

#include "machine.h"

#define MACHINE_NO_LIMIT UINT64_MAX

struct machine_limit {
	uint64_t hard; /* bytes */
	uint64_t used;
};

enum machine_limit_status {
	MACHINE_LIMIT_OK,
	MACHINE_LIMIT_NONE,      /* this cgroup has none on this card */
	MACHINE_LIMIT_NO_CGROUP, /* the path is no directory of a cgroup v2 hierarchy */
	MACHINE_LIMIT_FULL,      /* no room for another limit */
};

/* `path` is a cgroup's directory. Setting no limit removes the former one. */
enum machine_limit_status machine_limit_set(unsigned device, const char *path, uint64_t hard);
enum machine_limit_status machine_limit_get(unsigned device, const char *path,
                                            struct machine_limit *out);

/* The least that the hard limits above this process allow: in total, and now. */
void machine_limit_own(unsigned device, uint64_t *total, uint64_t *available);

#endif
