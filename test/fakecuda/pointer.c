/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver knows about an address. */
#include "address.h"
#include "driver.h"

static CUresult attribute_of(void *out, int attribute, CUcontext context, CUdeviceptr address)
{
	const struct range *range = ranges_at(&allocations, address);

	if (!out || !range)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)out = context;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)out =
		    range->kind == RANGE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)out = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (range->kind != RANGE_HOST && range->kind != RANGE_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(CUdeviceptr *)out = address;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)out = range->kind == RANGE_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)out = context->device->ordinal;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)out = range->start;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)out = range->size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
	DRIVER_ENTER_CONTEXT(context);
	return attribute_of(out, attribute, context, address);
}

/* Unlike the single form, it succeeds for what is unknown and leaves that output alone. */
CUDA_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **out,
                                         CUdeviceptr address)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!attributes || !out)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		attribute_of(out[i], attributes[i], context, address);
	return CUDA_SUCCESS;
}
