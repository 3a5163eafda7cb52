/* SPDX-License-Identifier: Apache-2.0 */
/* What the hooks share. */
#ifndef GPUSLICE_HOOK_H
#define GPUSLICE_HOOK_H

#include "process.h"
#include "table.h"

/* The context that is current, as an owner of memory; 0 if there is none. */
uint64_t current_owner(void);

/*
 * After the driver answered a request that was charged: remember the bytes under `key` if it
 * succeeded, give them back if not. Returns `result`. If there is no memory to remember them, they
 * stay charged until the process ends: too much rather than too little.
 */
CUresult held_or_released(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes);

/* Around the call that releases it, in the order that block.h explains for block_leave(). */
bool unhold(uint64_t key, struct map_value *value);
CUresult released_or_held(CUresult result, uint64_t key, struct map_value value);

/* Everything that belonged to a destroyed context is given back. */
void owner_gone(uint64_t owner);

#endif
