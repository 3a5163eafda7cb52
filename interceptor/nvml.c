/* SPDX-License-Identifier: Apache-2.0 */
/* How NVML's own functions are found, and which device of the ledger NVML speaks of. */
#include "nvml.h"

#include "elf_symbol.h"

#include <stdbool.h>
#include <string.h>

/* The longest that NVML writes is a MIG device's of older drivers (its reference, "Device and
 * instance constants": NVML_DEVICE_UUID_V2_BUFFER_SIZE). */
#define UUID_TEXT_BYTES 96

void *nvml_function[NVML_ENTRY_POINTS];

static const struct {
	const char *name;
	void *hook; /* NULL: only called */
} table[NVML_ENTRY_POINTS] = {
#define GPUSLICE_HOOKED(name, arguments, shown, released) [ID_##name] = {#name, (void *)name},
#define GPUSLICE_CALLED(name, arguments) [ID_##name] = {#name, NULL},
    GPUSLICE_NVML_TABLE(GPUSLICE_NVML_NO_GROUP, GPUSLICE_HOOKED, GPUSLICE_CALLED)};

/* Where libnvidia-ml was when nvml_function was filled; a program may unload it and load it again.
 */
static ElfW(Addr) nvml_base;

int nvml_find(void)
{
	struct elf_object object;

	if (!elf_find_object("libnvidia-ml.so.1", &object))
		return 0;
	if (object.base == __atomic_load_n(&nvml_base, __ATOMIC_ACQUIRE))
		return 1;
	/* Several threads may do this at once: they store the same. */
	for (int id = 0; id < NVML_ENTRY_POINTS; id++)
		__atomic_store_n(&nvml_function[id], elf_find_symbol(&object, table[id].name),
		                 __ATOMIC_RELEASE);
	__atomic_store_n(&nvml_base, object.base, __ATOMIC_RELEASE);
	return 1;
}

void *nvml_exchange(void *found)
{
	for (int id = 0; found && id < NVML_ENTRY_POINTS; id++) {
		if (table[id].hook && nvml_function[id] == found)
			return table[id].hook;
	}
	return found;
}

nvmlReturn_t nvml_missing(void)
{
	return nvml_find() ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

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
