/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_memory.h"

#include <stdlib.h>

static void note_high(struct graph_pool *pool)
{
	uint64_t used = pool->live_used + pool->idle_used;

	if (used > pool->used_high)
		pool->used_high = used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
}

struct graph_memory *graph_memory_create(void)
{
	struct graph_memory *memory = calloc(1, sizeof(*memory));

	if (memory)
		memory->holders = 1;
	return memory;
}

void graph_memory_drop(struct graph_memory *memory)
{
	if (--memory->holders)
		return;
	while (memory->slots) {
		struct graph_slot *slot = memory->slots;

		memory->slots = slot->next;
		free(slot);
	}
	while (memory->areas) {
		struct graph_area *area = memory->areas;

		memory->areas = area->next;
		address_free(area->start, area->size);
		free(area);
	}
	free(memory);
}

/* Observed: 200 allocations of 512 bytes are in one step. */
#define SLOT_UNIT 512
#define AREA (1024 * MiB)

/* The area of the device's next slot. */
static struct graph_area *area_for(struct graph_memory *memory, const struct device *device,
                                   uint64_t bytes)
{
	struct graph_area *area = memory->areas;

	while (area && area->device != device)
		area = area->next;
	if (area && area->size - area->used >= bytes)
		return area;
	area = calloc(1, sizeof(*area));
	if (!area)
		return NULL;
	area->device = device;
	area->size = round_up(bytes > AREA ? bytes : AREA, GRAPH_STEP);
	area->start = address_reserve(area->size, GRAPH_STEP);
	if (!area->start) {
		free(area);
		return NULL;
	}
	area->next = memory->areas;
	memory->areas = area;
	return area;
}

struct graph_slot *graph_slot_create(struct graph_memory *memory, struct device *device,
                                     uint64_t size)
{
	struct graph_slot *slot = calloc(1, sizeof(*slot)), **last = &memory->slots;
	struct graph_area *area;

	if (!slot)
		return NULL;
	slot->bytes = round_up(size, SLOT_UNIT);
	area = area_for(memory, device, slot->bytes);
	if (!area) {
		free(slot);
		return NULL;
	}
	slot->range.start = area->start + area->used;
	area->used += slot->bytes;
	slot->range.kind = RANGE_GRAPH;
	slot->memory = memory;
	slot->device = device;
	slot->taken = true;
	while (*last)
		last = &(*last)->next;
	*last = slot;
	return slot;
}

/* Takes step by step: the steps taken of a segment stay, even if there is no room for the rest. */
static bool grow(struct device *device, uint64_t bytes, uint64_t *partial)
{
	struct graph_pool *pool = &device->graphs;
	uint64_t size = round_up(bytes, GRAPH_STEP);
	struct graph_segment *segment;

	while (*partial < size) {
		if (!device_charge(device, GRAPH_STEP))
			return false;
		*partial += GRAPH_STEP;
		pool->partial += GRAPH_STEP;
		pool->reserved += GRAPH_STEP;
		note_high(pool);
	}
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return false;
	segment->size = size;
	segment->next = pool->segments;
	pool->segments = segment;
	*partial -= size;
	pool->partial -= size;
	return true;
}

bool graph_memory_reserve(struct graph_memory *memory, struct device *device, uint64_t *partial)
{
	struct graph_pool *pool = &device->graphs;
	CUdeviceptr done = 0; /* the first step without memory */
	uint64_t use = 0;

	for (struct graph_slot *slot = memory->slots; slot; slot = slot->next) {
		CUdeviceptr first = slot->range.start / GRAPH_STEP;
		CUdeviceptr end = (slot->range.start + slot->bytes - 1) / GRAPH_STEP + 1;

		if (slot->device != device || slot->live)
			continue;
		if (first < done)
			first = done;
		slot->steps = end > first ? (end - first) * GRAPH_STEP : 0;
		if (end > done)
			done = end;
		use += slot->steps;
		if (pool->reserved - pool->partial < pool->live_used + use &&
		    !grow(device, slot->bytes, partial))
			return false;
	}
	if (pool->idle_used < use)
		pool->idle_used = use;
	note_high(pool);
	return true;
}

CUresult graph_slot_keep(struct graph_slot *slot, uint64_t size)
{
	struct graph_pool *pool = &slot->device->graphs;

	slot->range.size = size;
	if (!ranges_add(&allocations, &slot->range))
		return CUDA_ERROR_OUT_OF_MEMORY;
	slot->live = true;
	slot->memory->holders++;
	pool->idle_used -= slot->steps;
	pool->live_used += slot->steps;
	return CUDA_SUCCESS;
}

void graph_slot_free(struct graph_slot *slot)
{
	struct graph_pool *pool = &slot->device->graphs;

	ranges_remove(&allocations, &slot->range);
	slot->live = false;
	pool->live_used -= slot->steps;
	pool->idle_used += slot->steps;
	graph_memory_drop(slot->memory);
}

void graph_memory_free(struct range *range)
{
	graph_slot_free((struct graph_slot *)((char *)range - offsetof(struct graph_slot, range)));
}

void graph_memory_trim(struct device *device)
{
	struct graph_pool *pool = &device->graphs;
	struct graph_segment *segment, **link = &pool->segments;

	while ((segment = *link)) {
		if (pool->reserved - pool->partial - segment->size < pool->live_used) {
			link = &segment->next;
			continue;
		}
		*link = segment->next;
		device_release(device, segment->size);
		pool->reserved -= segment->size;
		free(segment);
	}
	pool->idle_used = 0;
}

CUDA_API CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	graph_memory_trim(device);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
	const struct graph_pool *pool;
	uint64_t *bytes = value;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	pool = &device->graphs;
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		*bytes = pool->live_used + pool->idle_used;
		break;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		*bytes = pool->used_high;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*bytes = pool->reserved;
		break;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*bytes = pool->reserved_high;
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return result;
}

/* A high-water mark can only be reset. */
CUDA_API CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
	struct graph_pool *pool;

	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!value || *(const uint64_t *)value ||
	    (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
	     attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH))
		return CUDA_ERROR_INVALID_VALUE;
	pool = &device->graphs;
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		pool->used_high = 0;
	else
		pool->reserved_high = 0;
	note_high(pool);
	return CUDA_SUCCESS;
}
