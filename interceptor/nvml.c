/* SPDX-License-Identifier: Apache-2.0 */
/* Which device of the ledger NVML speaks of. */
#include "nvml.h"

#include <stdbool.h>
#include <string.h>

/* The longest that NVML writes is a MIG device's of older drivers (its reference, "Device and
 * instance constants": NVML_DEVICE_UUID_V2_BUFFER_SIZE). */
#define UUID_TEXT_BYTES 96

static int digit_of(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *at = c ? strchr(digits, c | 0x20) : NULL;

	return at ? (int)(at - digits) : -1;
}

/* Read GPU-8-4-4-4-12 or MIG-8-4-4-4-12 in hexadecimal. MIG-GPU-<uuid>/3/0, which drivers before
 * R470 write, names no UUID of its own. */
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

int nvml_ledger_device(struct process *process, nvmlDevice_t device)
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
	known = attach_known_device(process, uuid);
	if (known >= 0)
		return known;
	if (NVML_HAS(nvmlDeviceGetMemoryInfo))
		(void)NVML(nvmlDeviceGetMemoryInfo)(device, &memory);
	return process_device_by_uuid(process, uuid, memory.total);
}
