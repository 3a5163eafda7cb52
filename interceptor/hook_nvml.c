/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that NVML shows: the slice as the card, with CUDA's figures.
 *
 * NVML's total exceeds CUDA's by the driver's own memory (480 MiB on an H100), which nvmlMemory_t
 * counts as used, nvmlMemory_v2_t as `reserved`; `free` is the same. A quota smaller than the card
 * by at least that shows nothing reserved, one as large as the card shows the card.
 */
#include "nvml.h"
#include "view.h"

/* Returns false if the device is shown unchanged. */
static bool look(nvmlDevice_t device, struct view *view)
{
	int index = nvml_ledger_device(process_attached(), device);

	if (index == NVML_UNNAMED)
		return false;
	*view = view_of(index);
	return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct view view;
	nvmlReturn_t result = NVML(nvmlDeviceGetMemoryInfo)(device, memory);

	if (result != NVML_SUCCESS || !memory || !look(device, &view))
		return result;
	memory->total = least(memory->total, view.total);
	memory->free = least(memory->free, least(view.left, memory->total));
	memory->used = memory->total - memory->free;
	return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	unsigned long long granted;
	struct view view;
	nvmlReturn_t result = NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);

	if (result != NVML_SUCCESS || !memory || !look(device, &view))
		return result;
	/* The card's memory available to programs: CUDA's total. */
	granted = memory->total - least(memory->reserved, memory->total);
	granted = least(granted, view.total);
	memory->total = least(memory->total, view.total);
	memory->reserved = memory->total - granted;
	memory->free = least(memory->free, least(view.left, granted));
	memory->used = granted - memory->free;
	return result;
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t result = NVML(nvmlShutdown)();

	nvml_forget_devices();
	return result;
}
