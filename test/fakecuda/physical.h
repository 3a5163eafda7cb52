/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory without an address. It lives until its last handle and its last mapping are gone.
 * A mapping is any use without a handle: an address range, tiles of a sparse array, a place in a
 * multicast object.
 */
#ifndef FAKECUDA_PHYSICAL_H
#define FAKECUDA_PHYSICAL_H

#include "driver.h"

struct physical {
	unsigned handles, mappings;
	unsigned tiles;        /* mappings into sparse arrays */
	struct device *device; /* NULL: host memory, or a multicast object */
	uint64_t size;
	CUdeviceptr filled; /* the address of its bytes: its last mapping */
	int shared;         /* the file with its bytes, if it was ever mapped twice */
	CUmemAllocationProp properties;
	CUmemGenericAllocationHandle handle; /* 0: not visible to programs */
	/* Its bytes are listed for no process, since only tiles hold it. */
	bool unlisted;
	/* The machine's object, once it is shared (hold.h). */
	uint64_t object;
	unsigned handle_hold, mapping_hold;
	struct multicast *multicast;
};

/*
 * Creates memory with one handle for programs. INVALID_VALUE for impossible properties,
 * INVALID_DEVICE, OUT_OF_MEMORY.
 */
CUresult physical_create(uint64_t size, const CUmemAllocationProp *properties,
                         struct physical **out);
/* Memory that takes nothing of a card. NULL: no host memory. */
struct physical *physical_create_empty(uint64_t size);
/* The same memory as in its exporter, with one handle that programs do not see. */
CUresult physical_import(uint64_t object, struct physical **out);
/* Gives it a number for programs; false if there is no memory. */
bool physical_enlist(struct physical *physical);
/* NULL: no handle has this number. */
struct physical *physical_of(CUmemGenericAllocationHandle handle);
/* The card of the properties, or NULL for host memory. */
CUresult physical_locate(const CUmemAllocationProp *properties, struct device **device);

/* Adds a handle or a mapping; false if the machine has no room for it. */
bool physical_retain(struct physical *physical);
bool physical_map(struct physical *physical);
/* Removes one. The last one releases the memory. */
void physical_release(struct physical *physical);
void physical_unmap(struct physical *physical);

/* Makes it an object of the machine, and returns that; 0 if there is no room. */
uint64_t physical_share(struct physical *physical);

/* multicast.c. Unbinds all memory, after the object's last handle and mapping. */
void multicast_end(struct multicast *multicast);

#endif
