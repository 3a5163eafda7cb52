/* SPDX-License-Identifier: Apache-2.0 */
#include "managed.h"

#include "machine_checkpoint.h"

#include <stdlib.h>

#define BATCH 64u

struct managed {
	struct owned owned;
	struct range range;
	struct device *device;
	size_t chunks;
	bool on_card[];
};

static struct managed *managed_of(struct range *range)
{
	return (struct managed *)((char *)range - offsetof(struct managed, range));
}

/* On a full card the page stays in host memory. */
static bool take_chunk(struct device *device)
{
	if (!device->managed_spare) {
		if (!device_charge_with(device, 0, BATCH * MANAGED_CHUNK))
			return false;
		device->managed_spare = BATCH;
	}
	device->managed_spare--;
	return true;
}

unsigned managed_take(struct device *device, unsigned chunks)
{
	unsigned taken = 0;

	while (taken < chunks && take_chunk(device))
		taken++;
	return taken;
}

void managed_give(struct device *device, unsigned chunks)
{
	device_release_with(device, 0, chunks * MANAGED_CHUNK);
}

static void destroy(struct owned *owned)
{
	struct managed *managed = (struct managed *)owned;

	ranges_remove(&allocations, &managed->range);
	address_free(managed->range.start, managed->chunks * MANAGED_CHUNK);
	machine_add_unmovable(-1);
	for (size_t i = 0; i < managed->chunks; i++)
		if (managed->on_card[i])
			device_release_with(managed->device, 0, MANAGED_CHUNK);
	free(managed);
}

CUresult managed_allocate(CUcontext context, size_t size, CUdeviceptr *out)
{
	size_t chunks = size / MANAGED_CHUNK + (size % MANAGED_CHUNK != 0);
	struct managed *managed;

	if (chunks > SIZE_MAX / MANAGED_CHUNK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	managed = calloc(1, sizeof(*managed) + chunks * sizeof(managed->on_card[0]));
	if (!managed)
		return CUDA_ERROR_OUT_OF_MEMORY;
	managed->device = context->device;
	managed->chunks = chunks;
	managed->range.kind = RANGE_MANAGED;
	managed->range.size = size;
	managed->range.context = context;
	managed->range.start = address_reserve(chunks * MANAGED_CHUNK, ADDRESS_STEP);
	if (!managed->range.start)
		goto no_address;
	if (!ranges_add(&allocations, &managed->range))
		goto no_range;
	/* The host may access it without a call. */
	address_back(managed->range.start, size);
	context_own(context, &managed->owned, destroy);
	machine_add_unmovable(1);
	*out = managed->range.start;
	return CUDA_SUCCESS;
no_range:
	address_free(managed->range.start, chunks * MANAGED_CHUNK);
no_address:
	free(managed);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

void managed_free(struct range *range)
{
	struct managed *managed = managed_of(range);

	context_disown(&managed->owned);
	destroy(&managed->owned);
}

void managed_touch(struct range *range, CUdeviceptr start, size_t size)
{
	struct managed *managed = managed_of(range);
	size_t first = (start - range->start) / MANAGED_CHUNK;
	size_t end = (start + size - range->start + MANAGED_CHUNK - 1) / MANAGED_CHUNK;

	for (size_t i = first; i < end; i++)
		if (!managed->on_card[i])
			managed->on_card[i] = take_chunk(managed->device);
}
