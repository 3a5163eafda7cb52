/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML's entry points that gpuslice knows, in a table like table.h's: HOOK(name, arguments, what is
 * shown, ""). All else that NVML exports passes untouched. Of what tells about memory or processes,
 * these pass:
 *
 *   nvmlDeviceGetBAR1MemoryInfo: the window through which the CPU sees the card. It is not VRAM,
 *   and nobody sizes anything by it.
 *   nvmlDeviceGetAccountingPids, nvmlDeviceGetAccountingStats: of processes that have ended, too,
 *   which nobody can tell whose they were; it is off unless the operator switched it on.
 *   nvmlDeviceGetUtilizationRates and other figures of the card as a whole: a slice has no part of
 *   its time.
 */
#ifndef GPUSLICE_NVML_TABLE_H
#define GPUSLICE_NVML_TABLE_H

#include "nvml_abi.h"

#define GPUSLICE_NVML_TABLE(GROUP, HOOK, CALL)                                                     \
	GROUP("Memory as NVML tells it", "hook_nvml.c")                                            \
	HOOK(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory),                \
	     "the slice as the card", "")                                                          \
	HOOK(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory),          \
	     "the slice as the card; `reserved` only of what the quota has beyond it", "")         \
	GROUP("Processes as NVML tells them", "hook_nvml_list.c")                                  \
	HOOK(nvmlDeviceGetComputeRunningProcesses,                                                 \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetComputeRunningProcesses_v2,                                              \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetComputeRunningProcesses_v3,                                              \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses,                                                \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses_v2,                                             \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetGraphicsRunningProcesses_v3,                                             \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses,                                              \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v2,                                           \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v3,                                           \
	     (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos),              \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetRunningProcessDetailList,                                                \
	     (nvmlDevice_t device, nvmlProcessDetailList_v1_t * list), "the slice's processes",    \
	     "")                                                                                   \
	HOOK(nvmlDeviceGetProcessUtilization,                                                      \
	     (nvmlDevice_t device, nvmlProcessUtilizationSample_t * samples, unsigned int *count,  \
	      unsigned long long since),                                                           \
	     "the slice's processes", "")                                                          \
	HOOK(nvmlDeviceGetProcessesUtilizationInfo,                                                \
	     (nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t * info),                      \
	     "the slice's processes", "")                                                          \
	CALL(nvmlDeviceGetUUID, (nvmlDevice_t device, char *text, unsigned int size))

/* Prototypes. Only the hooks are visible outside the library. */
#define GPUSLICE_NVML_NO_GROUP(title, file)
#define GPUSLICE_NVML_HOOK_PROTOTYPE(name, arguments, shown, released)                             \
	__attribute__((visibility("default"))) nvmlReturn_t name arguments;
#define GPUSLICE_NVML_CALL_PROTOTYPE(name, arguments) nvmlReturn_t name arguments;
GPUSLICE_NVML_TABLE(GPUSLICE_NVML_NO_GROUP, GPUSLICE_NVML_HOOK_PROTOTYPE,
                    GPUSLICE_NVML_CALL_PROTOTYPE)
#undef GPUSLICE_NVML_HOOK_PROTOTYPE
#undef GPUSLICE_NVML_CALL_PROTOTYPE

enum nvml_entry_point {
#define GPUSLICE_NVML_HOOK_ID(name, arguments, shown, released) ID_##name,
#define GPUSLICE_NVML_CALL_ID(name, arguments) ID_##name,
	GPUSLICE_NVML_TABLE(GPUSLICE_NVML_NO_GROUP, GPUSLICE_NVML_HOOK_ID, GPUSLICE_NVML_CALL_ID)
#undef GPUSLICE_NVML_HOOK_ID
#undef GPUSLICE_NVML_CALL_ID
	    NVML_ENTRY_POINTS
};

/* NVML's own functions, by entry point; NULL where this driver has none. */
extern void *nvml_function[NVML_ENTRY_POINTS];

/* Fill nvml_function if libnvidia-ml is loaded. Returns whether it is. */
int nvml_find(void);

/* The function to hand out in place of `found`, which a look-up returned after nvml_find(). */
void *nvml_exchange(void *found);

/* NVML's own function of that name, typed, and whether it can be called: as DRIVER, DRIVER_HAS. */
#define NVML(name) ((__typeof__(&name))nvml_function[ID_##name])
#define NVML_HAS(name) (nvml_function[ID_##name] || (nvml_find(), nvml_function[ID_##name]))

/* The answer of a hook whose function this NVML does not have. */
nvmlReturn_t nvml_missing(void);

#endif
