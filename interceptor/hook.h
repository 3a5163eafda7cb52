/* SPDX-License-Identifier: Apache-2.0 */
/* What the hooks share. */
#ifndef GPUSLICE_HOOK_H
#define GPUSLICE_HOOK_H

#include "process.h"
#include "table.h"

/* What a value in process.pointers is. Addresses and handles of the driver are pointers of one
 * process, so their keys cannot meet. */
enum kind {
	KIND_LINEAR = 1,
	KIND_ARRAY = 2,
	KIND_MIPMAPPED = 3,
};

/* The context that is current, as an owner of memory; 0 if there is none. */
static inline uint64_t current_owner(void)
{
	CUcontext context = NULL;

	if (!DRIVER_HAS(cuCtxGetCurrent) || DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		return 0;
	return (uint64_t)(uintptr_t)context;
}

/*
 * After the driver answered a request that was charged: remember the bytes under `key` if it
 * succeeded, give them back if not. Returns `result`. If there is no memory to remember them, they
 * stay charged until the process ends: too much rather than too little.
 */
CUresult held_or_released(CUresult result, uint64_t key, CUdevice ordinal, uint64_t bytes,
                          enum kind kind);

/*
 * Take what `key` holds out of the map. The order of every release is: out of the map, the
 * driver's call, then give back; and into the map again if the driver fails. Given back
 * earlier, others could take the bytes while the driver still holds them; taken out later, the
 * address could be in use again by then.
 */
bool unhold(uint64_t key, struct map_value *value);
CUresult released_or_held(CUresult result, uint64_t key, struct map_value value);

/* Everything that belonged to a destroyed context is given back. */
void owner_gone(uint64_t owner);

#endif
