/* SPDX-License-Identifier: Apache-2.0 */
/* Maps NVML's devices to ledger devices. */
#include "nvml.h"

#include "entry.h"
#include "state.h"

#include <stdbool.h>
#include <string.h>

/* NVML's longest UUID is a MIG device's in older drivers (its reference, "Device and instance
 * constants": NVML_DEVICE_UUID_V2_BUFFER_SIZE). */
#define UUID_TEXT_BYTES 96

static int digit_of(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c ? strchr(digits, c | 0x20) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Parses GPU-8-4-4-4-12 or MIG-8-4-4-4-12 in hexadecimal. MIG-GPU-<uuid>/3/0, of drivers before
 * R470, has no UUID of its own. */
static bool read_uuid(const char *text, uint8_t uuid[16])
{
	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	text += 4;
	for (int i = 0; i < 16; i++, text += 2) {
		int high, low;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
			return false;
		high = digit_of(text[0]);
		low = high < 0 ? -1 : digit_of(text[1]);
		if (low < 0)
			return false;
		uuid[i] = (uint8_t)(high << 4 | low);
	}
	return *text == '\0';
}

/* --- the cache ------------------------------------------------------------------------------ */

static uint32_t shutdowns;

void nvml_forget_devices(void)
{
	__atomic_fetch_add(&shutdowns, 1, __ATOMIC_RELEASE);
}

static uint32_t current_age(void)
{
	return __atomic_load_n(&shutdowns, __ATOMIC_ACQUIRE) +
	       __atomic_load_n(&library_nvml.fills, __ATOMIC_ACQUIRE);
}

/* Returns -1 if unknown. */
static int recall(nvmlDevice_t device, uint32_t age)
{
	STATE_LOCKED(cache, nvml);
	const struct nvml_known *known = map_find(&cache->devices, map_key_of(device));

	return known && known->age == age ? known->index : -1;
}

static void remember(nvmlDevice_t device, uint32_t age, int index)
{
	STATE_LOCKED(cache, nvml);
	struct nvml_known *known = map_put(&cache->devices, map_key_of(device), NULL);

	if (known)
		*known = (struct nvml_known){age, index};
}

/* -------------------------------------------------------------------------------------------- */

static int find_ledger_device(struct process *process, nvmlDevice_t device)
{
	char text[UUID_TEXT_BYTES] = "";
	nvmlMemory_t memory = {0};
	uint8_t uuid[16];
	int known;

	if (!NVML_HAS(nvmlDeviceGetUUID) ||
	    NVML(nvmlDeviceGetUUID)(device, text, sizeof(text)) != NVML_SUCCESS ||
	    !read_uuid(text, uuid))
		return NVML_UNNAMED;
	if (!process)
		return NVML_NO_QUOTA;
	known = account_find_device(process->ledger, uuid);
	if (known >= 0)
		return known;
	if (NVML_HAS(nvmlDeviceGetMemoryInfo))
		(void)NVML(nvmlDeviceGetMemoryInfo)(device, &memory);
	return process_device_by_uuid(process, uuid, memory.total);
}

int nvml_ledger_device(struct process *process, nvmlDevice_t device)
{
	uint32_t age = current_age(); /* before the look-up: NVML may be shut down during it */
	int index = process ? recall(device, age) : -1;

	if (index >= 0)
		return index;
	index = find_ledger_device(process, device);
	if (index >= 0)
		remember(device, age, index);
	return index;
}
