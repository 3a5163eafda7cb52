/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml: limits of a cgroup's memory on a card, as in drivers of R615 and later. Without
 * FAKECUDA_LIMITS=1 the functions exist and are not supported.
 */
#define _GNU_SOURCE
#include "config.h"
#include "machine_limit.h"
#include "nvml_handle.h"

#include <unistd.h>

static nvmlReturn_t check(nvmlDevice_t device, const void *limits, const char *cgroup)
{
	TRY(nvml_check(device, limits));
	if (!cgroup)
		return NVML_ERROR_INVALID_ARGUMENT;
	return config_is("FAKECUDA_LIMITS", "1") ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t result_of(enum machine_limit_status status)
{
	switch (status) {
	case MACHINE_LIMIT_OK:
		return NVML_SUCCESS;
	case MACHINE_LIMIT_NONE:
		return NVML_ERROR_NOT_FOUND;
	case MACHINE_LIMIT_NO_CGROUP:
		return NVML_ERROR_OPERATING_SYSTEM;
	default:
		return NVML_ERROR_MEMORY;
	}
}

NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
                                                   nvmlSetMemoryLimits_v1_t *limits)
{
	uint64_t total;

	TRY(check(device, limits, limits ? limits->nameSpace : NULL));
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	total = machine_device(device->machine)->memory;
	if (limits->softLimit > limits->hardLimit || limits->softLimit > total ||
	    (limits->hardLimit > total && limits->hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (limits->softLimit != 0)
		return NVML_ERROR_NOT_SUPPORTED;
	return result_of(machine_limit_set(device->machine, limits->nameSpace, limits->hardLimit));
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                                                   nvmlGetMemoryLimits_v1_t *limits)
{
	nvmlReturn_t result = check(device, limits, limits ? limits->nameSpace : NULL);
	struct machine_limit limit;

	if (result == NVML_SUCCESS)
		result = result_of(machine_limit_get(device->machine, limits->nameSpace, &limit));
	if (result != NVML_SUCCESS)
		return result;
	limits->softLimit = 0;
	limits->hardLimit = limit.hard;
	limits->currentUsed = limit.used;
	return NVML_SUCCESS;
}
