/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml: a card's memory in use. */
#include "machine.h"
#include "nvml_handle.h"

/* The first form counts the driver's own memory as used. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	const struct machine_device *card;

	TRY(nvml_check(device, memory));
	card = machine_device(device->machine);
	memory->total = card->memory;
	memory->used = machine_used(device->machine) + card->reserved;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	const struct machine_device *card;

	TRY(nvml_check(device, memory));
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	card = machine_device(device->machine);
	memory->total = card->memory;
	memory->reserved = card->reserved;
	memory->used = machine_used(device->machine);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}
