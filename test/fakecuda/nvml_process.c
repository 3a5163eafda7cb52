/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml: the memory of processes, and how busy they are. */
#define _GNU_SOURCE
#include "config.h"
#include "machine.h"
#include "nvml_handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/*
 * Turns the pids into those of the host, which most drivers return even in a container. They are
 * unknown there, so the file in FAKECUDA_NVML_PIDS has them: a line "PID HOST-PID" for each visible
 * process, and "0 HOST-PID" for an invisible one, with 1 MiB. Returns their number.
 */
static unsigned as_on_the_host(struct machine_process *list, unsigned found, unsigned room)
{
	const char *path = getenv("FAKECUDA_NVML_PIDS");
	FILE *file = path ? fopen(path, "r") : NULL;
	unsigned seen = found < room ? found : room;
	int pid, host;

	if (!file)
		return found;
	while (fscanf(file, "%d %d", &pid, &host) == 2) {
		if (pid == 0) {
			if (found < room)
				list[found] = (struct machine_process){host, MiB};
			found++;
		}
		/* A turned pid is not matched again: pids of the host are negative here. */
		for (unsigned i = 0; pid && i < seen; i++) {
			if (list[i].pid == pid)
				list[i].pid = -host;
		}
	}
	fclose(file);
	for (unsigned i = 0; i < seen; i++)
		list[i].pid = abs(list[i].pid);
	return found;
}

/*
 * Lists the processes if there is room for `*count`, and sets it to their number. The caller frees
 * `*list`.
 */
static nvmlReturn_t look(nvmlDevice_t device, unsigned *count, const void *infos,
                         struct machine_process **list)
{
	nvmlReturn_t result = nvml_check(device, count);
	unsigned room, found;

	*list = NULL;
	if (result != NVML_SUCCESS)
		return result;
	room = *count < MACHINE_MAX_PROCESSES ? *count : MACHINE_MAX_PROCESSES;
	*list = calloc(room + 1, sizeof(**list));
	if (!*list)
		return NVML_ERROR_MEMORY;
	found = config_is("FAKECUDA_NVML_LISTS", "none")
	            ? 0
	            : machine_processes(device->machine, *list, room);
	found = as_on_the_host(*list, found, room);
	if (found > room) {
		*count = found;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	/* Observed: the array is checked only if there is room enough. */
	if (*count && !infos)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = found;
	return NVML_SUCCESS;
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

/* There is no graphics and no MPS server: these lists are empty. */
static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count)
{
	TRY(nvml_check(device, count));
	*count = 0;
	return NVML_SUCCESS;
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

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                            nvmlProcessDetailList_v1_t *list)
{
	struct machine_process *found;
	nvmlReturn_t result;

	TRY(nvml_check(device, list));
	if (list->version != NVML_PROCESS_DETAIL_LIST_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	/* Observed: NVML_PROCESS_MODE_ALL is not one of its modes. */
	if (list->mode > NVML_PROCESS_MODE_MPS)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (list->mode == NVML_PROCESS_MODE_GRAPHICS || list->mode == NVML_PROCESS_MODE_MPS)
		return nobody(device, &list->numProcArrayEntries);
	result = look(device, &list->numProcArrayEntries, list->procArray, &found);
	for (unsigned i = 0; result == NVML_SUCCESS && i < list->numProcArrayEntries; i++)
		list->procArray[i] =
		    (nvmlProcessDetail_v1_t){.pid = (unsigned)found[i].pid,
		                             .usedGpuMemory = found[i].bytes,
		                             .gpuInstanceId = NVML_NO_INSTANCE,
		                             .computeInstanceId = NVML_NO_INSTANCE};
	free(found);
	return result;
}

static unsigned long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
}

/* Each process with memory has used 1 % of the card since any time. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t *samples,
                                                      unsigned int *count, unsigned long long since)
{
	struct machine_process *list;
	unsigned found = MACHINE_MAX_PROCESSES;
	nvmlReturn_t result = nvml_check(device, count);

	if (result != NVML_SUCCESS)
		return result;
	if (!samples) {
		*count = MACHINE_MAX_PROCESSES;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	result = look(device, &found, samples, &list);
	if (result == NVML_SUCCESS && (!found || now() <= since))
		result = NVML_ERROR_NOT_FOUND;
	if (result == NVML_SUCCESS && found > *count)
		result = NVML_ERROR_INSUFFICIENT_SIZE;
	*count = found;
	for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++)
		samples[i] = (nvmlProcessUtilizationSample_t){
		    .pid = (unsigned)list[i].pid, .timeStamp = now(), .smUtil = 1};
	free(list);
	return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                            nvmlProcessesUtilizationInfo_v1_t *info)
{
	struct machine_process *list;
	unsigned found = MACHINE_MAX_PROCESSES;
	nvmlReturn_t result = nvml_check(device, info);

	if (result != NVML_SUCCESS)
		return result;
	if (info->version != NVML_PROCESSES_UTILIZATION_INFO_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	result = look(device, &found, info, &list);
	if (result == NVML_SUCCESS && (!found || now() <= info->lastSeenTimeStamp))
		result = NVML_ERROR_NOT_FOUND;
	if (result == NVML_SUCCESS && (!info->procUtilArray || found > info->processSamplesCount))
		result = NVML_ERROR_INSUFFICIENT_SIZE;
	info->processSamplesCount = found;
	for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
		    .timeStamp = now(), .pid = (unsigned)list[i].pid, .smUtil = 1};
	free(list);
	return result;
}
