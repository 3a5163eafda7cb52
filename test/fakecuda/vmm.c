/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: physical memory and address ranges. Neither belongs to a context. */
#include "vmm.h"
#include "address.h"
#include "driver.h"
#include "physical.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mapping {
	struct range range;
	struct physical *physical;
	int access[MACHINE_MAX_DEVICES]; /* by card, from cuMemSetAccess */
	CUcontext filler;                /* the last to fill it, and its number of waits then */
	uint64_t filled_after;
};

static struct ranges reservations;
static uint64_t waits;

static struct mapping *mapping_of(struct range *range)
{
	return (struct mapping *)((char *)range - offsetof(struct mapping, range));
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size,
                       const CUmemAllocationProp *properties)
{
	struct device *device;
	struct physical *physical;

	TRY(physical_locate(properties, &device));
	if (!out || !size || size % VMM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	/* The cards are not connected. */
	if (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	TRY(physical_create(size, properties, &physical));
	*out = physical->handle;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                              const CUmemAllocationProp *properties, unsigned long long flags)
{
	DRIVER_ENTER();
	return flags ? CUDA_ERROR_INVALID_VALUE : create(out, size, properties);
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct physical *physical;

	DRIVER_ENTER();
	physical = physical_of(handle);
	if (!physical)
		return CUDA_ERROR_INVALID_VALUE;
	physical_release(physical);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment,
                                      CUdeviceptr wish, unsigned long long flags)
{
	struct range *range;

	(void)wish; /* a hint that need not be followed */
	DRIVER_ENTER();
	if (!out || !size || size % VMM_GRANULARITY || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < ADDRESS_STEP)
		alignment = ADDRESS_STEP;
	range = calloc(1, sizeof(*range));
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->size = size;
	range->kind = RANGE_RESERVED;
	range->start = address_reserve(size, alignment);
	if (!range->start || !ranges_add(&reservations, range)) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = range->start;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr start, size_t size)
{
	struct range *range;

	DRIVER_ENTER();
	range = ranges_at(&reservations, start);
	if (!range || range->start != start || range->size != size ||
	    ranges_overlapping(&allocations, start, size))
		return CUDA_ERROR_INVALID_VALUE;
	ranges_remove(&reservations, range);
	address_free(start, size);
	free(range);
	return CUDA_SUCCESS;
}

static bool is_reserved(CUdeviceptr start, size_t size)
{
	const struct range *range = ranges_at(&reservations, start);

	return range && size <= range->size && start - range->start <= range->size - size;
}

/* Makes the memory's bytes visible at `start`, too. */
static bool show_bytes(struct physical *physical, CUdeviceptr start, size_t size)
{
	struct range *range = ranges_at(&allocations, physical->filled);
	bool mapped =
	    range && range->kind == RANGE_MAPPED && mapping_of(range)->physical == physical;

	if (mapped || physical->shared)
		return address_share(physical->filled, start, size, &physical->shared);
	if (physical->filled != start) /* else it was mapped there before */
		address_forget(start, size);
	return true;
}

static CUresult map(CUdeviceptr start, size_t size, size_t offset, struct physical *physical)
{
	struct mapping *mapping;

	if (!size || size % VMM_GRANULARITY || start % VMM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	/* Only the whole memory can be mapped. */
	if (offset || size != physical->size)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!is_reserved(start, size) || ranges_overlapping(&allocations, start, size))
		return CUDA_ERROR_INVALID_VALUE;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->range = (struct range){.start = start, .size = size, .kind = RANGE_MAPPED};
	mapping->physical = physical;
	if (!physical_map(physical)) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!show_bytes(physical, start, size)) {
		physical_unmap(physical);
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->filled = start;
	if (!ranges_add(&allocations, &mapping->range)) {
		physical_unmap(physical);
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemMap(CUdeviceptr start, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct physical *physical;

	DRIVER_ENTER();
	physical = physical_of(handle);
	if (!physical || flags)
		return CUDA_ERROR_INVALID_VALUE;
	return map(start, size, offset, physical);
}

struct physical *vmm_physical_at(CUdeviceptr address, CUdeviceptr *start)
{
	struct range *range = ranges_at(&allocations, address);

	if (!range || range->kind != RANGE_MAPPED)
		return NULL;
	*start = range->start;
	return mapping_of(range)->physical;
}

/* True if [start, start + size) consists of whole mappings without a gap. */
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

/* True if an edge of [start, start + size) lies inside a mapping. */
static bool cuts_a_mapping(CUdeviceptr start, size_t size)
{
	const struct range *first = ranges_at(&allocations, start);
	const struct range *last = ranges_at(&allocations, start + size - 1);

	return (first && first->start < start) || (last && last->start + last->size > start + size);
}

int vmm_access(const struct range *range, const struct device *device)
{
	return mapping_of((struct range *)range)->access[device->ordinal];
}

const struct range *vmm_reservation(CUdeviceptr address)
{
	return ranges_at(&reservations, address);
}

/* The next of the adjacent mappings that cover [*start, ...); NULL at a gap. */
static struct mapping *walk(CUdeviceptr *start, size_t *size)
{
	struct range *range = ranges_at(&allocations, *start);
	size_t part;

	if (!range || range->kind != RANGE_MAPPED)
		return NULL;
	part = range->size - (*start - range->start);
	if (part > *size)
		part = *size;
	*start += part;
	*size -= part;
	return mapping_of(range);
}

bool vmm_may_touch(CUcontext context, CUdeviceptr start, size_t size, bool write)
{
	int needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;

	while (size) {
		const struct mapping *mapping = walk(&start, &size);

		if (!mapping || (mapping->access[context->device->ordinal] & needed) != needed)
			return false;
	}
	return true;
}

void vmm_fill(CUcontext context, CUdeviceptr start, size_t size)
{
	while (size) {
		struct mapping *mapping = walk(&start, &size);

		if (!mapping)
			return;
		mapping->filler = context;
		mapping->filled_after = waits;
	}
}

void vmm_work_done(void)
{
	waits++;
}

bool vmm_fails(const char *call)
{
	const char *path = getenv("FAKECUDA_VMM_FAULT");
	FILE *file = path ? fopen(path, "r") : NULL;
	char text[32] = "";
	bool is = file && fgets(text, sizeof(text), file) && strcmp(text, call) == 0;

	if (file)
		fclose(file);
	return is;
}

/* Any reserved range, with many mappings, gaps, or no mapping at all. */
CUDA_API CUresult cuMemUnmap(CUdeviceptr start, size_t size)
{
	struct range *range;

	DRIVER_ENTER();
	if (!size || (!is_reserved(start, size) && !is_whole_mappings(start, size)) ||
	    cuts_a_mapping(start, size))
		return CUDA_ERROR_INVALID_VALUE;
	while ((range = ranges_overlapping(&allocations, start, size))) {
		struct mapping *mapping = mapping_of(range);

		if (mapping->access[0] == CU_MEM_ACCESS_FLAGS_PROT_READ && vmm_fails("cuMemUnmap"))
			return CUDA_ERROR_UNKNOWN;
		if (mapping->filler && mapping->filled_after == waits)
			context_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
		ranges_remove(&allocations, &mapping->range);
		physical_unmap(mapping->physical);
		free(mapping);
	}
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *list,
                                 size_t count)
{
	DRIVER_ENTER();
	if (!size || !list || !count || !is_whole_mappings(start, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (list->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && vmm_fails("cuMemSetAccess"))
		return CUDA_ERROR_UNKNOWN;
	while (size) {
		struct mapping *mapping = walk(&start, &size);

		for (size_t i = 0; i < count; i++)
			if (list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
			    device_at(list[i].location.id))
				mapping->access[list[i].location.id] = list[i].flags;
	}
	return CUDA_SUCCESS;
}

/* For any address in a mapping. The host has no access to the card's memory. */
CUDA_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                 CUdeviceptr address)
{
	struct range *range;

	DRIVER_ENTER();
	range = ranges_at(&allocations, address);
	if (!flags || !location || !range || range->kind != RANGE_MAPPED ||
	    (location->type != CU_MEM_LOCATION_TYPE_HOST &&
	     (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_at(location->id))))
		return CUDA_ERROR_INVALID_VALUE;
	/* For the host it returns the device's access. */
	*flags = (unsigned long long)mapping_of(range)
	             ->access[location->type == CU_MEM_LOCATION_TYPE_HOST ? 0 : location->id];
	return CUDA_SUCCESS;
}

/* Adds a handle to the memory, with its existing number. */
CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	struct range *range;
	struct physical *physical;

	DRIVER_ENTER();
	range = ranges_at(&allocations, (uintptr_t)address);
	if (!out || !range || range->kind != RANGE_MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	physical = mapping_of(range)->physical;
	if (!physical_retain(physical))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = physical->handle;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *properties,
                                                int option)
{
	struct device *device;

	DRIVER_ENTER();
	if (!out || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(physical_locate(properties, &device));
	*out = VMM_GRANULARITY;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                         CUmemGenericAllocationHandle handle)
{
	const struct physical *physical;

	DRIVER_ENTER();
	physical = physical_of(handle);
	if (!out || !physical)
		return CUDA_ERROR_INVALID_VALUE;
	*out = physical->properties;
	return CUDA_SUCCESS;
}
