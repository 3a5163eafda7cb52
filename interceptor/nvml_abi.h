/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVML's binary interface used by gpuslice, its simulated driver and its tests. Layouts
 * are those of NVML's reference, unchanged since R510 except for the lists of processes
 * (hook_nvml_list.c).
 */
#ifndef GPUSLICE_NVML_ABI_H
#define GPUSLICE_NVML_ABI_H

#include <assert.h>
#include <stddef.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

/* The version of a structure includes its size. */
#define NVML_STRUCT_VERSION(type, number) ((unsigned int)(sizeof(type) | (number##u << 24)))

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
#define NVML_MEMORY_V2 NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)

/* Drivers since R615. Soft 0 and hard NVML_DEVICE_MEMORY_LIMIT_MAX mean no limit. */
#define NVML_DEVICE_MEMORY_LIMIT_MAX 0xffffffffffffffffull

typedef struct {
	const char *nameSpace; /* a cgroup's directory */
	unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;
static_assert(sizeof(nvmlSetMemoryLimits_v1_t) == 24, "nvmlSetMemoryLimits_v1_t");

typedef struct {
	const char *nameSpace;
	unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;
static_assert(sizeof(nvmlGetMemoryLimits_v1_t) == 32, "nvmlGetMemoryLimits_v1_t");

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory; /* bytes; all ones if unknown */
} nvmlProcessInfo_v1_t;
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "nvmlProcessInfo_v1_t");

/* For the functions ending in _v2 and _v3. */
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "nvmlProcessInfo_v2_t");

#define NVML_NO_INSTANCE 0xffffffffu /* no MIG on the card */

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");

/* nvmlProcessMode_t */
enum {
	NVML_PROCESS_MODE_COMPUTE = 0,
	NVML_PROCESS_MODE_GRAPHICS = 1,
	NVML_PROCESS_MODE_MPS = 2,
	NVML_PROCESS_MODE_ALL = 3,
};

typedef struct {
	unsigned int version;
	unsigned int mode;
	unsigned int numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;
static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24, "nvmlProcessDetailList_v1_t");
#define NVML_PROCESS_DETAIL_LIST_V1 NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1)

/* Utilisation in percent; times in microseconds. */
typedef struct {
	unsigned int pid;
	unsigned long long timeStamp;
	unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "nvmlProcessUtilizationSample_t");

typedef struct {
	unsigned long long timeStamp;
	unsigned int pid;
	unsigned int smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40, "nvmlProcessUtilizationInfo_v1_t");

typedef struct {
	unsigned int version;
	unsigned int processSamplesCount;
	unsigned long long lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;
static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24, "nvmlProcessesUtilizationInfo_v1_t");
#define NVML_PROCESSES_UTILIZATION_INFO_V1 NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1)

#endif
