/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory without an address. It lives until its last handle and its last mapping are
 * gone; a mapping is whatever uses it without a handle: an address range, tiles of a sparse array,
 * a place in a multicast object.
 */
#ifndef FAKECUDA_PHYSICAL_H
#define FAKECUDA_PHYSICAL_H

#include "driver.h"

struct physical {
	unsigned handles, mappings;
	unsigned tiles;        /* of the mappings, those into sparse arrays */
	struct device *device; /* NULL: host memory, or a multicast object */
	uint64_t size;
	CUdeviceptr filled; /* where its bytes are kept: the address it was mapped at last */
	int shared;         /* the file that has them, if it was ever mapped twice */
	CUmemAllocationProp properties;
	CUmemGenericAllocationHandle handle; /* 0: programs have none */
	/* The bytes are listed for no process: only tiles were left of what held them. */
	bool unlisted;
	/* Once it is shared, the machine knows it, and who holds it (hold.h). */
	uint64_t object;
	unsigned handle_hold, mapping_hold;
	struct multicast *multicast;
};

/*
 * With one handle, that programs can name. INVALID_VALUE for properties that no memory has,
 * INVALID_DEVICE, OUT_OF_MEMORY.
 */
CUresult physical_create(uint64_t size, const CUmemAllocationProp *properties,
                         struct physical **out);
/* One that takes nothing of a card. NULL: no memory. */
struct physical *physical_create_empty(uint64_t size);
/* The same memory as in the process that exported it, with one handle that programs cannot name. */
CUresult physical_import(uint64_t object, struct physical **out);
/* Gives it a number for programs; false if there is no memory. */
bool physical_enlist(struct physical *physical);
/* NULL: no handle has this number. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
/* The card that the properties ask for, or NULL for host memory. */
CUresult physical_locate(const CUmemAllocationProp *properties, struct device **device);

/* One handle or mapping more; false if the machine has no room to note it. */
bool physical_retain(struct physical *physical);
bool physical_map(struct physical *physical);
/* One less: the last one takes the memory with it. */
void physical_release(struct physical *physical);
void physical_unmap(struct physical *physical);

/* Makes it known to the machine: its object, or 0 if there is no room. */
uint64_t physical_share(struct physical *physical);

#endif
