/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of graphs. A card hands it out in steps of 32 MiB to the process's graphs together,
 * when one of them is uploaded or launched; it stays with them until it is trimmed. Observed: a
 * graph's allocations have addresses one behind the other, and a step stands behind each 32 MiB of
 * addresses that they touch. Where steps are missing for an allocation, the card adds as many as
 * its size takes. An allocation that a graph does not free itself keeps its steps until someone
 * else frees it.
 */
#ifndef FAKECUDA_GRAPH_MEMORY_H
#define FAKECUDA_GRAPH_MEMORY_H

#include "address.h"
#include "driver.h"

#define GRAPH_STEP (32 * MiB)

/* Memory that the card added at a time: whole steps. */
struct graph_segment {
	struct graph_segment *next;
	uint64_t size;
};

/* Addresses that a graph's slots on one device are in. */
struct graph_area {
	struct graph_area *next;
	const struct device *device;
	CUdeviceptr start;
	uint64_t size, used;
};

/* Addresses that one or more allocation nodes of a graph have in turn. */
struct graph_slot {
	struct graph_slot *next; /* of the same graph, in the order of addresses */
	struct graph_memory *memory;
	struct device *device;
	uint64_t bytes;     /* of addresses */
	bool taken;         /* while the graph is being built: no node has freed it so far */
	CUgraphNode freed;  /* the node that did last */
	bool live;          /* a launch left it allocated, and nobody has freed it */
	uint64_t steps;     /* bytes of the steps behind it that are not behind an earlier slot */
	struct range range; /* in `allocations` while it is live; `start` is always right */
};

/* The slots of a graph; they outlive it if an executable graph or a live allocation needs them. */
struct graph_memory {
	unsigned holders; /* graph, executable graph, live slots */
	bool instantiated;
	struct graph_slot *slots;
	struct graph_area *areas;
};

struct graph_memory *graph_memory_create(void);
void graph_memory_drop(struct graph_memory *memory);
/* A new slot, taken; NULL if there is no room for its addresses. */
struct graph_slot *graph_slot_create(struct graph_memory *memory, struct device *device,
                                     uint64_t size);

/*
 * Sees to it that the card's memory behind all slots that are not live is there. What it got
 * before it found the card full is added to *partial: only the same executable graph can use that
 * later, and nothing ever gives it back.
 */
bool graph_memory_reserve(struct graph_memory *memory, struct device *device, uint64_t *partial);

/* After graph_memory_reserve: the slot's allocation of `size` bytes stays. */
CUresult graph_slot_keep(struct graph_slot *slot, uint64_t size);
void graph_slot_free(struct graph_slot *slot);
/* The same for a range of RANGE_GRAPH. */
void graph_memory_free(struct range *range);

/* Gives back what no live allocation and no upload that failed holds. */
void graph_memory_trim(struct device *device);

#endif
