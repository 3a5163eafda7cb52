/* SPDX-License-Identifier: Apache-2.0 */
/* The cards that this process sees, and their attributes. */
#define _GNU_SOURCE
#include "config.h"
#include "driver.h"
#include "pool.h"
#include "uuid.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct device devices[MACHINE_MAX_DEVICES];
static int device_count;

/* A UUID may be shortened, if only one card matches. */
static int find_by_uuid(const char *prefix)
{
	char text[UUID_TEXT_BYTES];
	int found = -1;

	for (unsigned i = 0; i < machine_device_count(); i++) {
		uuid_format(machine_device(i)->uuid, text);
		if (strncasecmp(text, prefix, strlen(prefix)) != 0)
			continue;
		if (found != -1)
			return -1;
		found = (int)i;
	}
	return found;
}

static int find_by_name(const char *name)
{
	char *end;
	long index;

	if (strncmp(name, "GPU-", 4) == 0)
		return find_by_uuid(name);
	index = strtol(name, &end, 10);
	if (end == name || *end || index < 0 || index >= (long)machine_device_count())
		return -1;
	return (int)index;
}

static void see(unsigned machine)
{
	devices[device_count] = (struct device){.machine = machine, .ordinal = device_count};
	device_count++;
}

/*
 * CUDA_VISIBLE_DEVICES by the programming guide: a list of indices or UUIDs, in the order in which
 * they become 0, 1, …; the first that matches no card ends the list.
 */
CUresult devices_learn(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char *list, *rest, *name;

	device_count = 0;
	if (!visible) {
		for (unsigned i = 0; i < machine_device_count(); i++)
			see(i);
		return CUDA_SUCCESS;
	}
	list = strdup(visible);
	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rest = list;
	while ((name = strsep(&rest, ","))) {
		int machine = find_by_name(name);

		if (machine == -1 || device_of((unsigned)machine))
			break;
		see((unsigned)machine);
	}
	free(list);
	return device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

struct device *device_at(CUdevice ordinal)
{
	return ordinal >= 0 && ordinal < device_count ? &devices[ordinal] : NULL;
}

struct device *device_of(unsigned machine)
{
	for (int i = 0; i < device_count; i++)
		if (devices[i].machine == machine)
			return &devices[i];
	return NULL;
}

uint64_t device_capacity(const struct device *device)
{
	const struct machine_device *card = machine_device(device->machine);

	return card->memory - card->reserved;
}

bool device_charge_with(struct device *device, uint64_t listed, uint64_t unlisted)
{
	if (machine_charge(device->machine, listed, unlisted))
		return true;
	return pools_give_back(device) && machine_charge(device->machine, listed, unlisted);
}

bool device_charge_free(struct device *device, uint64_t bytes)
{
	return machine_charge(device->machine, bytes, 0);
}

void device_release_with(struct device *device, uint64_t listed, uint64_t unlisted)
{
	machine_release(device->machine, listed, unlisted);
}

bool device_charge(struct device *device, uint64_t bytes)
{
	return device_charge_with(device, bytes, 0);
}

void device_release(struct device *device, uint64_t bytes)
{
	device_release_with(device, bytes, 0);
}

CUresult driver_enter_device(CUdevice ordinal, struct device **device)
{
	TRY(driver_enter());
	*device = device_at(ordinal);
	return *device ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUDA_API CUresult cuDeviceGetCount(int *count)
{
	DRIVER_ENTER();
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = device_count;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = device->ordinal;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetName(char *name, int size, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!name || size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)size, "%s", MACHINE_DEVICE_NAME);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid->bytes, machine_device(device->machine)->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
	return cuDeviceGetUuid_v2(uuid, ordinal);
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = device_capacity(device);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice ordinal)
{
	uint64_t capacity;

	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	capacity = device_capacity(device);
	*bytes = capacity > UINT_MAX ? UINT_MAX : (unsigned int)capacity;
	return CUDA_SUCCESS;
}

static int attribute_of(const struct device *device, int attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		return 32;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return CARD_PROCESSORS;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return CARD_PROCESSOR_THREADS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return 9;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return (int)device->machine + 1;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		return 1;
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		return !config_is("FAKECUDA_VMM", "none");
	default:
		return 0;
	}
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!value || attribute <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute_of(device, attribute);
	return CUDA_SUCCESS;
}
