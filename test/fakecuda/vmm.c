/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: physical memory and address space by themselves. Physical memory
 * lives until its last handle and its last mapping are gone. None of it belongs to a context.
 */
#include "address.h"
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define GRANULARITY (2 * MiB)

struct physical {
	unsigned handles, mappings;
	struct device *device; /* NULL: host memory */
	uint64_t size;
	CUmemAllocationProp properties;
	CUmemGenericAllocationHandle handle;
};

struct mapping {
	struct range range;
	struct physical *physical;
};

/* Handles are places in this table, plus 1. */
static struct physical **table;
static size_t table_size;
static struct ranges reservations;

static struct mapping *mapping_of(struct range *range)
{
	return (struct mapping *)((char *)range - offsetof(struct mapping, range));
}

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
	struct physical *physical;

	if (handle == 0 || handle > table_size)
		return NULL;
	physical = table[handle - 1];
	return physical && physical->handles ? physical : NULL;
}

static bool enlist(struct physical *physical)
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

static void drop_if_unused(struct physical *physical)
{
	if (physical->handles || physical->mappings)
		return;
	if (physical->device)
		device_release(physical->device, physical->size);
	table[physical->handle - 1] = NULL;
	free(physical);
}

static bool is_host(int type)
{
	return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
	       type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

/* The card that the properties ask for, or NULL for host memory. */
static CUresult locate(const CUmemAllocationProp *properties, struct device **device)
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

static CUresult create(CUmemGenericAllocationHandle *out, size_t size,
                       const CUmemAllocationProp *properties)
{
	struct device *device;
	struct physical *physical;
	CUresult result = locate(properties, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !size || size % GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	physical = calloc(1, sizeof(*physical));
	if (!physical)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*physical = (struct physical){
	    .handles = 1, .device = device, .size = size, .properties = *properties};
	if (device && !device_charge(device, size)) {
		free(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!enlist(physical)) {
		if (device)
			device_release(device, size);
		free(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = physical->handle;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                              const CUmemAllocationProp *properties, unsigned long long flags)
{
	CUresult result;

	latency(LATENCY_CREATE);
	result = driver_enter();
	if (result != CUDA_SUCCESS)
		return result;
	return driver_leave(flags ? CUDA_ERROR_INVALID_VALUE : create(out, size, properties));
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult result;
	struct physical *physical;

	latency(LATENCY_RELEASE);
	result = driver_enter();
	if (result != CUDA_SUCCESS)
		return result;
	physical = physical_of(handle);
	if (!physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	physical->handles--;
	drop_if_unused(physical);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment,
                                      CUdeviceptr wish, unsigned long long flags)
{
	CUresult result = driver_enter();
	struct range *range;

	(void)wish; /* a wish that need not be granted */
	if (result != CUDA_SUCCESS)
		return result;
	if (!out || !size || size % GRANULARITY || flags || (alignment & (alignment - 1)))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (alignment < ADDRESS_STEP)
		alignment = ADDRESS_STEP;
	range = calloc(1, sizeof(*range));
	if (!range)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	range->size = size;
	range->kind = RANGE_RESERVED;
	range->start = address_reserve(size, alignment);
	if (!range->start || !ranges_add(&reservations, range)) {
		free(range);
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = range->start;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr start, size_t size)
{
	CUresult result = driver_enter();
	struct range *range;

	if (result != CUDA_SUCCESS)
		return result;
	range = ranges_at(&reservations, start);
	if (!range || range->start != start || range->size != size ||
	    ranges_overlapping(&allocations, start, size))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	ranges_remove(&reservations, range);
	address_free(start, size);
	free(range);
	return driver_leave(CUDA_SUCCESS);
}

static bool is_reserved(CUdeviceptr start, size_t size)
{
	const struct range *range = ranges_at(&reservations, start);

	return range && size <= range->size && start - range->start <= range->size - size;
}

static CUresult map(CUdeviceptr start, size_t size, size_t offset, struct physical *physical)
{
	struct mapping *mapping;

	if (!size || size % GRANULARITY || start % GRANULARITY || size > physical->size)
		return CUDA_ERROR_INVALID_VALUE;
	/* Only the whole memory can be mapped, so far. */
	if (offset || size < physical->size)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!is_reserved(start, size) || ranges_overlapping(&allocations, start, size))
		return CUDA_ERROR_INVALID_VALUE;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->range = (struct range){.start = start, .size = size, .kind = RANGE_MAPPED};
	mapping->physical = physical;
	if (!ranges_add(&allocations, &mapping->range)) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->mappings++;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemMap(CUdeviceptr start, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = driver_enter();
	struct physical *physical;

	if (result != CUDA_SUCCESS)
		return result;
	physical = physical_of(handle);
	if (!physical || flags)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(map(start, size, offset, physical));
}

/* Whether [start, start + size) is made of whole mappings without a gap. */
static bool is_whole_mappings(CUdeviceptr start, size_t size)
{
	while (size) {
		const struct range *range = ranges_at(&allocations, start);

		if (!range || range->kind != RANGE_MAPPED || range->start != start ||
		    range->size > size)
			return false;
		start += range->size;
		size -= range->size;
	}
	return true;
}

/* Whether an edge of [start, start + size) lies inside a mapping. */
static bool cuts_a_mapping(CUdeviceptr start, size_t size)
{
	const struct range *first = ranges_at(&allocations, start);
	const struct range *last = ranges_at(&allocations, start + size - 1);

	return (first && first->start < start) || (last && last->start + last->size > start + size);
}

/* Any reserved range: many mappings, gaps between them, even none at all. */
CUDA_API CUresult cuMemUnmap(CUdeviceptr start, size_t size)
{
	CUresult result = driver_enter();
	struct range *range;

	if (result != CUDA_SUCCESS)
		return result;
	if (!size || (!is_reserved(start, size) && !is_whole_mappings(start, size)) ||
	    cuts_a_mapping(start, size))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	while ((range = ranges_overlapping(&allocations, start, size))) {
		struct mapping *mapping = mapping_of(range);

		ranges_remove(&allocations, &mapping->range);
		mapping->physical->mappings--;
		drop_if_unused(mapping->physical);
		free(mapping);
	}
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *list,
                                 size_t count)
{
	CUresult result = driver_enter();

	if (result != CUDA_SUCCESS)
		return result;
	if (!size || !list || !count || !is_whole_mappings(start, size))
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return driver_leave(CUDA_SUCCESS);
}

/* Adds to the handles of the memory, under the number that it already has. */
CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	CUresult result = driver_enter();
	struct range *range;
	struct physical *physical;

	if (result != CUDA_SUCCESS)
		return result;
	range = ranges_at(&allocations, (uintptr_t)address);
	if (!out || !range || range->kind != RANGE_MAPPED)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	physical = mapping_of(range)->physical;
	physical->handles++;
	*out = physical->handle;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *properties,
                                                int option)
{
	CUresult result = driver_enter();
	struct device *device;

	if (result != CUDA_SUCCESS)
		return result;
	if (!out || option < 0 || option > 1)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = locate(properties, &device);
	if (result == CUDA_SUCCESS)
		*out = GRANULARITY;
	return driver_leave(result);
}

CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                         CUmemGenericAllocationHandle handle)
{
	CUresult result = driver_enter();
	const struct physical *physical;

	if (result != CUDA_SUCCESS)
		return result;
	physical = physical_of(handle);
	if (!out || !physical)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*out = physical->properties;
	return driver_leave(CUDA_SUCCESS);
}
