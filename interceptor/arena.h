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

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct arena {
	unsigned char *memory; /* addresses */
	uint64_t room;         /* their number */
	uint64_t mapped;       /* bytes that are backed, from the start */
	uint64_t pinned;       /* bytes of those that are pinned */
};

/* Reserve addresses, if there are none yet. */
bool arena_reserve(struct arena *arena, CUdevice ordinal);

/* Called in a context. Map and pin the first `bytes`, and map up to `whole`, which may be needed
 * next. False if the host, a limit or the enforcer does not grant them. */
bool arena_grow(struct arena *arena, CUdevice ordinal, uint64_t bytes, uint64_t whole);

/* Called in a context. Unmap what is after the first `bytes`. */
void arena_trim(struct arena *arena, uint64_t bytes);

#endif
