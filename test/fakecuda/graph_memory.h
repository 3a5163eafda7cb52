/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of graphs. The card gives it in steps of 32 MiB to the process's graphs together, when
 * one is uploaded or launched; they keep it until it is trimmed. Observed: a graph's allocations
 * have consecutive addresses, and each 32 MiB of used addresses are backed by a step. If steps for
 * an allocation are missing, the card adds as many as its size takes. An allocation that its graph
 * does not free keeps its steps until it is freed otherwise.
 */
#ifndef FAKECUDA_GRAPH_MEMORY_H
#define FAKECUDA_GRAPH_MEMORY_H

#include "address.h"
#include "driver.h"

#define GRAPH_STEP (32 * MiB)

/* Whole steps that the card added at a time. */
struct graph_segment {
	struct graph_segment *next;
	uint64_t size;
};

/* The addresses of a graph's slots on one device. */
struct graph_area {
	struct graph_area *next;
	const struct device *device;
	CUdeviceptr start;
	uint64_t size, used;
};

/* Addresses that one or more allocation nodes of a graph use in turn. */
struct graph_slot {
	struct graph_slot *next; /* of the same graph, in the order of addresses */
	struct graph_memory *memory;
	struct device *device;
	uint64_t bytes;     /* of addresses */
	bool taken;         /* while the graph is built: not freed by a node yet */
	CUgraphNode freed;  /* the last node that freed it */
	bool live;          /* a launch left it allocated, and it is not freed yet */
	uint64_t steps;     /* bytes of the steps behind it, except those behind an earlier slot */
	struct range range; /* in `allocations` while it is live; `start` is always right */
};

/* The slots of a graph. They outlive it if an executable graph or a live allocation needs them. */
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
 * Ensures that all slots that are not live are backed by the card's memory. Bytes taken before the
 * card was full are added to *partial: only the same executable graph can use that later, and it is
 * never released.
 */
bool graph_memory_reserve(struct graph_memory *memory, struct device *device, uint64_t *partial);

/* After graph_memory_reserve: the slot's allocation of `size` bytes stays. */
CUresult graph_slot_keep(struct graph_slot *slot, uint64_t size);
void graph_slot_free(struct graph_slot *slot);
/* The same for a range of RANGE_GRAPH. */
void graph_memory_free(struct range *range);

/* Releases memory without a live allocation and without a failed upload. */
void graph_memory_trim(struct device *device);

#endif
