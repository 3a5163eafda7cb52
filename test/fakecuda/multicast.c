/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast objects: a write to their addresses reaches memory of several cards. An object takes
 * no memory itself; memory bound to it outlives its own handles. From NVIDIA's documentation; not
 * observed on a card.
 */
#include "physical.h"
#include "vmm.h"

#include <stdlib.h>

struct bind {
	struct bind *next;
	struct physical *physical;
	uint64_t offset, size; /* in the object */
};

struct multicast {
	unsigned devices; /* of the object */
	unsigned joined;
	struct device *device[MACHINE_MAX_DEVICES];
	struct bind *binds;
};

void multicast_end(struct multicast *multicast)
{
	while (multicast->binds) {
		struct bind *bind = multicast->binds;

		multicast->binds = bind->next;
		physical_unmap(bind->physical);
		free(bind);
	}
	free(multicast);
}

static CUresult check(const CUmulticastObjectProp *properties)
{
	/* Other processes cannot open a multicast object here. */
	if (properties && properties->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!properties || !properties->numDevices ||
	    properties->numDevices > machine_device_count() || properties->flags)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *out, const CUmulticastObjectProp *properties)
{
	struct physical *physical;

	TRY(check(properties));
	if (!out || !properties->size || properties->size % VMM_GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	physical = physical_create_empty(properties->size);
	if (!physical)
		return CUDA_ERROR_OUT_OF_MEMORY;
	physical->multicast = calloc(1, sizeof(*physical->multicast));
	if (!physical->multicast) {
		physical_release(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	physical->multicast->devices = properties->numDevices;
	*out = physical->handle;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out,
                                    const CUmulticastObjectProp *properties)
{
	DRIVER_ENTER();
	return create(out, properties);
}

static bool has_joined(const struct multicast *multicast, const struct device *device)
{
	for (unsigned i = 0; i < multicast->joined; i++)
		if (multicast->device[i] == device)
			return true;
	return false;
}

/* Leaves the lock held only on success. */
static CUresult enter(CUmemGenericAllocationHandle handle, struct physical **object)
{
	TRY(driver_enter());
	*object = physical_of(handle);
	if (!*object || !(*object)->multicast)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	struct physical *object;
	struct multicast *multicast;
	struct device *device;

	DRIVER_ENTER_BY(enter(handle, &object));
	multicast = object->multicast;
	device = device_at(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (multicast->joined == multicast->devices || has_joined(multicast, device))
		return CUDA_ERROR_INVALID_VALUE;
	multicast->device[multicast->joined++] = device;
	return CUDA_SUCCESS;
}

/* True if the card has memory bound in [offset, offset + size). */
static bool is_taken(const struct multicast *multicast, const struct device *device,
                     uint64_t offset, uint64_t size)
{
	for (const struct bind *bind = multicast->binds; bind; bind = bind->next)
		if (bind->physical->device == device && bind->offset < offset + size &&
		    offset < bind->offset + bind->size)
			return true;
	return false;
}

static bool is_within(uint64_t offset, uint64_t size, uint64_t whole)
{
	return size && offset % VMM_GRANULARITY == 0 && size % VMM_GRANULARITY == 0 &&
	       offset < whole && size <= whole - offset;
}

static CUresult bind_memory(struct physical *object, size_t offset, struct physical *memory,
                            size_t memory_offset, size_t size)
{
	struct multicast *multicast = object->multicast;
	struct bind *bind;

	if (!memory || memory->multicast || !memory->device ||
	    !has_joined(multicast, memory->device) || !is_within(offset, size, object->size) ||
	    !is_within(memory_offset, size, memory->size) ||
	    is_taken(multicast, memory->device, offset, size))
		return CUDA_ERROR_INVALID_VALUE;
	/* Documented: all cards must be added before the first bind. */
	if (multicast->joined < multicast->devices)
		return CUDA_ERROR_NOT_PERMITTED;
	bind = calloc(1, sizeof(*bind));
	if (!bind)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!physical_map(memory)) {
		free(bind);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*bind = (struct bind){
	    .next = multicast->binds, .physical = memory, .offset = offset, .size = size};
	multicast->binds = bind;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                     CUmemGenericAllocationHandle memory, size_t memory_offset,
                                     size_t size, unsigned long long flags)
{
	struct physical *object;

	DRIVER_ENTER_BY(enter(handle, &object));
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return bind_memory(object, offset, physical_of(memory), memory_offset, size);
}

/* Binds the memory mapped there. */
CUDA_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
                                      CUdeviceptr address, size_t size, unsigned long long flags)
{
	struct physical *object;
	struct physical *memory;
	CUdeviceptr start = address;

	DRIVER_ENTER_BY(enter(handle, &object));
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	memory = vmm_physical_at(address, &start);
	return bind_memory(object, offset, memory, address - start, size);
}

/* Documented: only whole binds can be unbound. */
static bool cuts_a_bind(const struct multicast *multicast, const struct device *device,
                        size_t offset, size_t size)
{
	for (const struct bind *bind = multicast->binds; bind; bind = bind->next)
		if (bind->physical->device == device && bind->offset < offset + size &&
		    offset < bind->offset + bind->size &&
		    (bind->offset < offset || bind->offset + bind->size > offset + size))
			return true;
	return false;
}

static void unbind(struct multicast *multicast, const struct device *device, size_t offset,
                   size_t size)
{
	struct bind **link = &multicast->binds;

	while (*link) {
		struct bind *bind = *link;

		if (bind->physical->device != device || bind->offset < offset ||
		    bind->offset >= offset + size) {
			link = &bind->next;
			continue;
		}
		*link = bind->next;
		physical_unmap(bind->physical);
		free(bind);
	}
}

CUDA_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal,
                                    size_t offset, size_t size)
{
	struct physical *object;
	struct device *device;

	DRIVER_ENTER_BY(enter(handle, &object));
	device = device_at(ordinal);
	if (!device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!has_joined(object->multicast, device) || !is_within(offset, size, object->size) ||
	    cuts_a_bind(object->multicast, device, offset, size))
		return CUDA_ERROR_INVALID_VALUE;
	unbind(object->multicast, device, offset, size);
	return CUDA_SUCCESS;
}
