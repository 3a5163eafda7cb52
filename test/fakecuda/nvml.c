/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml: queries of the machine. It sees all cards, even those that CUDA_VISIBLE_DEVICES
 * hides, possibly in another order than CUDA.
 */
#include "config.h"
#include "machine.h"
#include "nvml_handle.h"
#include "uuid.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.159.04"

static struct nvmlDevice_st handles[MACHINE_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users; /* nvmlInit minus nvmlShutdown */

static nvmlReturn_t start(void)
{
	bool reverse = config_is("FAKECUDA_NVML_ORDER", "reverse");
	nvmlReturn_t fault = nvml_fault();
	unsigned count;

	if (fault != NVML_SUCCESS)
		return fault;
	if (config_is("FAKECUDA_NVML", "fail"))
		return NVML_ERROR_DRIVER_NOT_LOADED;
	switch (machine_open()) {
	case MACHINE_OK:
		break;
	case MACHINE_MISMATCH:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	default:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
	count = machine_device_count();
	for (unsigned i = 0; i < count; i++)
		handles[i].machine = reverse ? count - 1 - i : i;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (!users)
		result = start();
	if (result == NVML_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	return result;
}

NVML_API nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML_SUCCESS;

	pthread_mutex_lock(&lock);
	if (users)
		users--;
	else
		result = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&lock);
	return result;
}

static nvmlReturn_t check_started(void)
{
	bool started;

	pthread_mutex_lock(&lock);
	started = users != 0;
	pthread_mutex_unlock(&lock);
	return started ? nvml_fault() : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_check(nvmlDevice_t device, const void *output)
{
	TRY(check_started());
	if (!output || device < handles || device >= handles + machine_device_count())
		return NVML_ERROR_INVALID_ARGUMENT;
	return NVML_SUCCESS;
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
	    [NVML_SUCCESS] = "Success",
	    [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
	    [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
	    [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
	    [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
	    [NVML_ERROR_NOT_FOUND] = "Not Found",
	    [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
	    [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
	    [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
	    [NVML_ERROR_OPERATING_SYSTEM] = "Operating System Error",
	    [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
	    [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
	};

	if (result < 0 || (size_t)result >= sizeof(texts) / sizeof(texts[0]) || !texts[result])
		return "Unknown Error";
	return texts[result];
}

static nvmlReturn_t give_text(const char *text, char *out, unsigned size)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	nvmlReturn_t result = check_started();

	return result == NVML_SUCCESS ? give_text(DRIVER_VERSION, version, size) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	TRY(check_started());
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = machine_device_count();
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	TRY(check_started());
	if (!device || index >= machine_device_count())
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &handles[index];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char text[UUID_TEXT_BYTES];

	TRY(check_started());
	if (!uuid || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < machine_device_count(); i++) {
		uuid_format(machine_device(handles[i].machine)->uuid, text);
		if (strcasecmp(text, uuid) == 0) {
			*device = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
	char text[UUID_TEXT_BYTES];

	TRY(nvml_check(device, uuid));
	uuid_format(machine_device(device->machine)->uuid, text);
	return give_text(text, uuid, size);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
	nvmlReturn_t result = nvml_check(device, name);

	return result == NVML_SUCCESS ? give_text(MACHINE_DEVICE_NAME, name, size) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	TRY(nvml_check(device, minor));
	*minor = device->machine;
	return NVML_SUCCESS;
}

struct pci_info { /* nvmlPciInfo_t */
	char busIdLegacy[16];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
};

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *pci)
{
	TRY(nvml_check(device, pci));
	memset(pci, 0, sizeof(*pci));
	pci->bus = device->machine + 1;
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", pci->bus);
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", pci->bus);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                         int *minor)
{
	TRY(nvml_check(device, major));
	if (!minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = 9; /* as in cuDeviceGetAttribute */
	*minor = 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                           unsigned int *pending)
{
	TRY(nvml_check(device, current));
	if (!pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = 0;
	*pending = 0;
	return NVML_SUCCESS;
}
