/* SPDX-License-Identifier: Apache-2.0 */
#include "physical.h"

#include "hold.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Handles are places in this table, plus 1. */
static struct physical **table;
static size_t table_size;

struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical;

	if (handle == 0 || handle > table_size)
		return NULL;
	physical = table[handle - 1];
	return physical && physical->handles ? physical : NULL;
}

bool physical_enlist(struct physical *physical)
{
	static size_t hint;
	size_t larger = table_size ? table_size * 2 : 64;
	struct physical **grown;

	for (size_t i = 0; i < table_size; i++) {
		size_t slot = (hint + i) % table_size;

		if (table[slot])
			continue;
		table[slot] = physical;
		physical->handle = slot + 1;
		hint = slot + 1;
		return true;
	}
	grown = realloc(table, larger * sizeof(*table));
	if (!grown)
		return false;
	memset(grown + table_size, 0, (larger - table_size) * sizeof(*table));
	table = grown;
	hint = table_size + 1;
	table[table_size] = physical;
	physical->handle = table_size + 1;
	table_size = larger;
	return true;
}

static bool is_host(int type)
{
	return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

CUresult physical_locate(const CUmemAllocationProp *properties, struct device **device)
{
	*device = NULL;
	if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (is_host(properties->location.type))
		return CUDA_SUCCESS;
	if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	*device = device_at(properties->location.id);
	return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

struct physical *physical_create_empty(uint64_t size)
{
	struct physical *physical = calloc(1, sizeof(*physical));

	if (!physical)
		return NULL;
	physical->handles = 1;
	physical->size = size;
	if (physical_enlist(physical))
		return physical;
	free(physical);
	return NULL;
}

CUresult physical_create(uint64_t size, const CUmemAllocationProp *properties,
                         struct physical **out)
{
	struct device *device;

	TRY(physical_locate(properties, &device));
	*out = physical_create_empty(size);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (device && !device_charge(device, size)) {
		physical_release(*out);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	(*out)->device = device;
	(*out)->properties = *properties;
	return CUDA_SUCCESS;
}

CUresult physical_import(uint64_t object, struct physical **out)
{
	struct device *device = NULL;
	struct physical *physical;
	struct object_info info;

	if (!object_find(object, &info) || info.kind != OBJECT_PHYSICAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (info.device != NO_DEVICE) {
		device = device_of(info.device);
		if (!device)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	physical = calloc(1, sizeof(*physical));
	if (!physical)
		return CUDA_ERROR_OUT_OF_MEMORY;
	physical->handle_hold = object_hold(object, HOLD_HANDLE);
	if (!physical->handle_hold) {
		free(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->handles = 1;
	physical->object = object;
	physical->device = device;
	physical->size = info.size;
	/* Observed: an import does not report how it may be exported. */
	physical->properties = (CUmemAllocationProp){
	    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	    .location = {info.location_type, device ? device->ordinal : info.location_id}};
	*out = physical;
	return CUDA_SUCCESS;
}

static void drop_if_unused(struct physical *physical)
{
	uint64_t bytes = physical->device && !physical->object ? physical->size : 0;

	if (physical->handles || physical->mappings)
		return;
	if (bytes)
		device_release_with(physical->device, physical->unlisted ? 0 : bytes,
		                    physical->unlisted ? bytes : 0);
	if (physical->multicast)
		multicast_end(physical->multicast);
	if (physical->handle)
		table[physical->handle - 1] = NULL;
	if (physical->shared)
		close(physical->shared);
	free(physical);
}

/* As with shared memory: its first holder determines the process for which it is listed. */
static void list(struct physical *physical, bool listed)
{
	if (physical->object || !physical->device || physical->unlisted == !listed)
		return;
	machine_move(physical->device->machine, physical->size, listed);
	physical->unlisted = !listed;
}

bool physical_retain(struct physical *physical)
{
	if (physical->object && !physical->handles) {
		physical->handle_hold = object_hold(physical->object, HOLD_HANDLE);
		if (!physical->handle_hold)
			return false;
	}
	physical->handles++;
	return true;
}

bool physical_map(struct physical *physical)
{
	if (physical->object && !physical->mappings) {
		physical->mapping_hold = object_hold(physical->object, HOLD_MAPPING);
		if (!physical->mapping_hold)
			return false;
	}
	physical->mappings++;
	return true;
}

void physical_release(struct physical *physical)
{
	if (--physical->handles == 0) {
		object_let_go(physical->handle_hold);
		physical->handle_hold = 0;
		if (physical->mappings && physical->mappings == physical->tiles)
			list(physical, false);
	}
	drop_if_unused(physical);
}

void physical_unmap(struct physical *physical)
{
	if (--physical->mappings == 0) {
		object_let_go(physical->mapping_hold);
		physical->mapping_hold = 0;
		if (physical->handles)
			list(physical, true);
	}
	drop_if_unused(physical);
}

uint64_t physical_share(struct physical *physical)
{
	const CUmemLocation *location = &physical->properties.location;
	struct object_info info = {.kind = OBJECT_PHYSICAL,
	                           .device = NO_DEVICE,
	                           .size = physical->size,
	                           .location_type = location->type,
	                           .location_id = location->id};
	unsigned *first = physical->unlisted ? &physical->mapping_hold : &physical->handle_hold;

	if (physical->object)
		return physical->object;
	if (physical->device) {
		info.device = physical->device->machine;
		info.bytes = physical->size;
	}
	physical->object =
	    object_create(&info, physical->unlisted ? HOLD_MAPPING : HOLD_HANDLE, first);
	if (!physical->object)
		return 0;
	/* Without room for a note only the first holds it. */
	if (!physical->handle_hold && physical->handles)
		physical->handle_hold = object_hold(physical->object, HOLD_HANDLE);
	if (!physical->mapping_hold && physical->mappings)
		physical->mapping_hold = object_hold(physical->object, HOLD_MAPPING);
	return physical->object;
}
