/* SPDX-License-Identifier: Apache-2.0 */
/*
 * External memory, which another interface exported as a file. Here that is always physical memory
 * of this driver.
 */
#define _GNU_SOURCE
#include "alloc.h"

#include "array.h"
#include "hold.h"
#include "physical.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct {
	unsigned long long offset;
	CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
	unsigned int numLevels;
	unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

struct CUextMemory_st {
	struct owned owned;
	struct physical *physical;
	uint64_t size;
};

struct buffer {
	struct owned owned;
	struct range range;
	struct physical *physical;
	CUdeviceptr start; /* of the whole memory's addresses */
};

static void destroy_memory(struct owned *owned)
{
	CUexternalMemory memory = (CUexternalMemory)owned;

	physical_release(memory->physical);
	free(memory);
}

static void destroy_buffer(struct owned *owned)
{
	struct buffer *buffer = (struct buffer *)owned;

	ranges_remove(&allocations, &buffer->range);
	address_free(buffer->start, buffer->physical->size);
	physical_unmap(buffer->physical);
	free(buffer);
}

void external_buffer_free(struct range *range)
{
	struct buffer *buffer = (struct buffer *)((char *)range - offsetof(struct buffer, range));

	context_disown(&buffer->owned);
	destroy_buffer(&buffer->owned);
}

static CUresult import(CUcontext context, CUexternalMemory *out,
                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUexternalMemory memory;
	struct physical *physical;
	CUresult result;

	TRY(physical_import(object_of_file(description->handle.fd), &physical));
	memory = calloc(1, sizeof(*memory));
	if (!memory || !description->size || description->size > physical->size) {
		physical_release(physical);
		result = memory ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
		free(memory);
		return result;
	}
	memory->physical = physical;
	memory->size = description->size;
	context_own(context, &memory->owned, destroy_memory);
	/* The driver owns the descriptor, and does not need it any more. */
	close(description->handle.fd);
	*out = memory;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuImportExternalMemory(CUexternalMemory *out,
                                         const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!out || !description)
		return CUDA_ERROR_INVALID_VALUE;
	if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	return import(context, out, description);
}

CUDA_API CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!memory)
		return CUDA_ERROR_INVALID_HANDLE;
	context_disown(&memory->owned);
	destroy_memory(&memory->owned);
	return CUDA_SUCCESS;
}

static CUresult map(CUcontext context, CUdeviceptr *out, CUexternalMemory memory, uint64_t offset,
                    uint64_t size)
{
	struct buffer *buffer = calloc(1, sizeof(*buffer));

	if (!buffer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	buffer->physical = memory->physical;
	buffer->start = address_reserve(memory->physical->size, ADDRESS_STEP);
	if (!buffer->start)
		goto no_address;
	if (!physical_map(buffer->physical))
		goto no_mapping;
	buffer->range =
	    (struct range){.start = buffer->start + offset, .size = size, .kind = RANGE_EXTERNAL};
	if (!ranges_add(&allocations, &buffer->range))
		goto no_range;
	context_own(context, &buffer->owned, destroy_buffer);
	*out = buffer->range.start;
	return CUDA_SUCCESS;
no_range:
	physical_unmap(buffer->physical);
no_mapping:
	address_free(buffer->start, memory->physical->size);
no_address:
	free(buffer);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* cuMemFree frees the buffer, which then does not need the external memory's handle. */
CUDA_API CUresult cuExternalMemoryGetMappedBuffer(
    CUdeviceptr *out, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
	DRIVER_ENTER_CONTEXT(context);
	if (!memory)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !description || description->flags || !description->size ||
	    description->offset > memory->size ||
	    description->size > memory->size - description->offset)
		return CUDA_ERROR_INVALID_VALUE;
	return map(context, out, memory, description->offset, description->size);
}

/* Its arrays have no memory of their own: they hold the external memory. */
CUDA_API CUresult cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray *out, CUexternalMemory memory,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *description)
{
	size_t bytes;

	DRIVER_ENTER_CONTEXT(context);
	if (!memory)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!out || !description || !description->numLevels ||
	    !array_is_valid(&description->arrayDesc) ||
	    !array_bytes(&description->arrayDesc, description->numLevels, &bytes) ||
	    description->offset > memory->size || bytes > memory->size - description->offset)
		return CUDA_ERROR_INVALID_VALUE;
	return mipmap_create(context, out, &description->arrayDesc, description->numLevels,
	                     memory->physical);
}
