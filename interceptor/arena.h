/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host memory to which a mover moves its process's memory: addresses for all that the device
 * has, of which the first ones are there, and pinned.
 *
 * The enforcer is asked for each part of it. Where the operator chose a cgroup for that, it is a
 * memfd that was charged there, and is this process's alone; else it is memory of the process's
 * own, which the kernel charges to its cgroup. In either case no descriptor is kept, nothing is
 * mapped in a forked child, and what is there stays, whatever becomes of the enforcer.
 */
#ifndef GPUSLICE_ARENA_H
#define GPUSLICE_ARENA_H

#include "mover.h"

/* Have the first `bytes`, in a context. False if the host, a limit or the enforcer does not give
 * them. */
bool arena_grow(struct mover *m, CUdevice ordinal, uint64_t bytes);

/* Give back what is behind the first `bytes`, in a context. */
void arena_trim(struct mover *m, uint64_t bytes);

#endif
