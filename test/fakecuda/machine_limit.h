/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of what the processes of a cgroup may hold of a card together, as
 * nvmlDeviceSetMemoryLimits_v1 sets them.
 *
 * What is used of a limit is never stored: it is the sum over the live processes in the cgroup and
 * below it. A limit goes with its cgroup. Soft limits are kept and shown, and nothing else comes of
 * them: each cgroup above has the sum of those below, and keeps that of one which was removed.
 */
#ifndef FAKECUDA_MACHINE_LIMIT_H
#define FAKECUDA_MACHINE_LIMIT_H

#include "machine.h"

#define MACHINE_NO_LIMIT UINT64_MAX

struct machine_limit {
	uint64_t soft, hard; /* bytes; 0 and MACHINE_NO_LIMIT: none */
	uint64_t used;
};

enum machine_limit_status {
	MACHINE_LIMIT_OK,
	MACHINE_LIMIT_NONE,      /* this cgroup has none on this card */
	MACHINE_LIMIT_NO_CGROUP, /* the path is no directory of a cgroup v2 hierarchy */
	MACHINE_LIMIT_FULL,      /* there is no room for one more */
};

/* `path` is a cgroup's directory. No limit in place of one takes that away. */
enum machine_limit_status machine_limit_set(unsigned device, const char *path, uint64_t soft,
                                            uint64_t hard);
enum machine_limit_status machine_limit_get(unsigned device, const char *path,
                                            struct machine_limit *out);

/* The least that a hard limit above this process leaves: of all, and of what is free. */
void machine_limit_own(unsigned device, uint64_t *total, uint64_t *available);

#endif
