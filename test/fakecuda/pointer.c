/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of pointers. */
#include "physical.h"
#include "pool_segment.h"
#include "vmm.h"

#include <string.h>

#define NO_DEVICE ((uint32_t)-2)

/* How many bytes an attribute has; 0: there is none of that number. */
static size_t width_of(int attribute)
{
	static const unsigned char widths[] = {0, 8, 4, 8, 8, 12, 4, 8, 4, 4, 4,
	                                       8, 8, 4, 8, 4, 4,  8, 8, 8, 8, 4};

	return attribute >= 0 && attribute < (int)sizeof(widths) ? widths[attribute] : 0;
}

static bool is_host(const struct range *range)
{
	return range && range->kind == RANGE_HOST;
}

/* The physical memory of a mapping, the pool of a pool's memory; else NULL. */
static const struct physical *physical_at(const struct range *range)
{
	CUdeviceptr start;

	return range ? vmm_physical_at(range->start, &start) : NULL;
}

static CUmemoryPool pool_at(const struct range *range)
{
	return range && range->kind == RANGE_POOL ? pool_of(range) : NULL;
}

static const struct device *device_of_range(const struct range *range)
{
	const struct physical *physical = physical_at(range);
	CUmemoryPool pool = pool_at(range);
	const struct device *device = range->context ? range->context->device : NULL;

	if (physical)
		device = physical->device;
	else if (pool)
		device = pool->device;
	return device ? device : device_at(0);
}

static uint64_t access_to(const struct range *range)
{
	if (range && range->kind == RANGE_MAPPED)
		return (unsigned)vmm_access(range, device_of_range(range));
	return range ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
}

static uint64_t handle_types_of(const struct range *range)
{
	const struct physical *physical = physical_at(range);

	if (physical)
		return (unsigned)physical->properties.requestedHandleTypes;
	return pool_at(range) ? (unsigned)pool_at(range)->handle_types : 0;
}

/* The start of what the driver has mapped as one, and its size. */
static uint64_t mapping_of(const struct range *range, uint64_t *size)
{
	const struct segment *segment;
	uint64_t start = range ? range->start : 0;

	*size = range ? range->size : 0;
	if (pool_at(range)) {
		segment = pool_extent_of((struct range *)range)->segment;
		*size = segment->size;
		start = segment->first->range.start;
	} else if (range && !is_host(range)) {
		start = range->start / ADDRESS_STEP * ADDRESS_STEP;
		*size = round_up(range->start + range->size, ADDRESS_STEP) - start;
	}
	return start;
}

/* Without memory there, it is what cuPointerGetAttributes answers. */
static uint64_t value_of(const struct range *range, CUdeviceptr pointer, int attribute)
{
	const struct range *reserved = vmm_reservation(pointer);
	const struct range *whole = reserved ? reserved : range;
	uint64_t size, start = mapping_of(range, &size);

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return range ? (uintptr_t)range->context : 0;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return range ? 2 - is_host(range) : 0;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return access_to(range) ? pointer : 0;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		return !range || is_host(range) || range->kind == RANGE_MANAGED ? pointer : 0;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return range && range->sync_changed == is_host(range);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		return range ? range->start : 0;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return range && range->kind == RANGE_MANAGED;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return range ? (uint64_t)device_of_range(range)->ordinal : NO_DEVICE;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return range && range->kind == RANGE_DEVICE;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return whole ? whole->start : 0;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return whole ? whole->size : 0;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return range != NULL;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return handle_types_of(range);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		return access_to(range);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return (uintptr_t)pool_at(range);
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		return size;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		return start;
	default:
		return 0;
	}
}

CUDA_API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
	const struct range *range;
	uint64_t value[2] = {0};
	bool fails = attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
	             attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER;

	DRIVER_ENTER();
	range = ranges_at(&allocations, pointer);
	if (!data || !range || !width_of(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	value[0] = value_of(range, pointer, attribute);
	memcpy(data, value, width_of(attribute));
	if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
		fails = is_host(range);
	return fails && !value[0] ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUDA_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data,
                                         CUdeviceptr pointer)
{
	const struct range *range;

	DRIVER_ENTER();
	range = ranges_at(&allocations, pointer);
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		uint64_t value = value_of(range, pointer, attributes[i]);
		bool of_range = attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
		                attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE;

		if (!width_of(attributes[i]) || attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			return CUDA_ERROR_INVALID_VALUE;
		if (value || !of_range)
			memcpy(data[i], &value, width_of(attributes[i]));
	}
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
	struct range *range;

	DRIVER_ENTER();
	range = ranges_at(&allocations, pointer);
	if (!value || !range || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	if (range->kind == RANGE_MAPPED)
		return CUDA_ERROR_NOT_SUPPORTED;
	range->sync_changed = (*(const unsigned int *)value != 0) == is_host(range);
	return CUDA_SUCCESS;
}
