/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml: who holds how much. */
#include "latency.h"
#include "machine.h"
#include "nvml_handle.h"

#include <stdlib.h>

/* The first form counts what the driver keeps for itself as used. */
NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	nvmlReturn_t result = nvml_check(device, memory);
	const struct machine_device *card;

	if (result != NVML_SUCCESS)
		return result;
	latency(LATENCY_NVML_MEMORY);
	card = machine_device(device->machine);
	memory->total = card->memory;
	memory->used = machine_used(device->machine) + card->reserved;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t result = nvml_check(device, memory);
	const struct machine_device *card;

	if (result != NVML_SUCCESS)
		return result;
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	latency(LATENCY_NVML_MEMORY);
	card = machine_device(device->machine);
	memory->total = card->memory;
	memory->reserved = card->reserved;
	memory->used = machine_used(device->machine);
	memory->free = memory->total - memory->reserved - memory->used;
	return NVML_SUCCESS;
}

/*
 * Looks at the processes with room for `*count`, and sets it to how many there are. `*list` is
 * the caller's to free.
 */
static nvmlReturn_t look(nvmlDevice_t device, unsigned *count, const void *infos,
                         struct machine_process **list)
{
	nvmlReturn_t result = nvml_check(device, count);
	unsigned room, found;

	*list = NULL;
	if (result != NVML_SUCCESS)
		return result;
	if (*count && !infos)
		return NVML_ERROR_INVALID_ARGUMENT;
	latency(LATENCY_NVML_PROCESSES);
	room = *count < MACHINE_MAX_PROCESSES ? *count : MACHINE_MAX_PROCESSES;
	*list = calloc(room + 1, sizeof(**list));
	if (!*list)
		return NVML_ERROR_MEMORY;
	found = machine_processes(device->machine, *list, room);
	*count = found;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                           nvmlProcessInfo_v1_t *infos)
{
	struct machine_process *list;
	nvmlReturn_t result = look(device, count, infos, &list);

	for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v1_t){.pid = (unsigned)list[i].pid,
		                                  .usedGpuMemory = list[i].bytes};
	free(list);
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                              unsigned int *count,
                                                              nvmlProcessInfo_v2_t *infos)
{
	struct machine_process *list;
	nvmlReturn_t result = look(device, count, infos, &list);

	for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++)
		infos[i] = (nvmlProcessInfo_v2_t){.pid = (unsigned)list[i].pid,
		                                  .usedGpuMemory = list[i].bytes,
		                                  .gpuInstanceId = NVML_NO_INSTANCE,
		                                  .computeInstanceId = NVML_NO_INSTANCE};
	free(list);
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                              unsigned int *count,
                                                              nvmlProcessInfo_v2_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
}

/* Nobody draws, and there is no MPS server: these lists are empty. */
static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count)
{
	nvmlReturn_t result = nvml_check(device, count);

	if (result == NVML_SUCCESS)
		*count = 0;
	return result;
}

#define EMPTY_LIST(name, type)                                                                     \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)          \
	{                                                                                          \
		(void)infos;                                                                       \
		return nobody(device, count);                                                      \
	}

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t)
