/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml: what a card reports of itself. The figures are those of an idle H100. */
#include "machine.h"
#include "nvml_handle.h"

/* Each process with memory uses 1 % of the card, as in nvmlDeviceGetProcessUtilization. */
NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned int rates[2])
{
	struct machine_process none;
	unsigned processes;

	TRY(nvml_check(device, rates));
	processes = machine_processes(device->machine, &none, 0);
	rates[0] = processes < 100 ? processes : 100; /* kernels */
	rates[1] = 0;                                 /* memory */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor,
                                               unsigned int *celsius)
{
	TRY(nvml_check(device, celsius));
	if (sensor != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = 32;
	return NVML_SUCCESS;
}

#define CONSTANT(name, value)                                                                      \
	NVML_API nvmlReturn_t name(nvmlDevice_t device, unsigned int *milliwatts)                  \
	{                                                                                          \
		TRY(nvml_check(device, milliwatts));                                               \
		*milliwatts = value;                                                               \
		return NVML_SUCCESS;                                                               \
	}

CONSTANT(nvmlDeviceGetPowerUsage, 71500)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, 700000)
