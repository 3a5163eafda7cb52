/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host memory to which a mover moves its process's memory: addresses for all memory of the
 * device, of which the first part is mapped, and pinned.
 *
 * The enforcer grants each part. If the operator chose a cgroup for host memory, a part is a memfd
 * that was charged there, and only this process has it. Otherwise it is memory of the process,
 * charged to its own cgroup. In both cases no descriptor is kept, a forked child has no mapping,
 * and the memory stays if the enforcer dies.
 */
#ifndef GPUSLICE_ARENA_H
#define GPUSLICE_ARENA_H

#include "mover.h"

/* Reserve addresses, if there are none yet. */
bool arena_reserve(struct mover *m, CUdevice ordinal);

/* Called in a context. Map and pin the first `bytes`. False if the host, a limit or the enforcer
 * does not grant them. */
bool arena_grow(struct mover *m, CUdevice ordinal, uint64_t bytes);

/* Called in a context. Unmap what is after the first `bytes`. */
void arena_trim(struct mover *m, uint64_t bytes);

#endif
