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

/* Handles are some hundred bytes apart. */
static size_t first_slot(nvmlDevice_t device)
{
	return (size_t)(((uintptr_t)device >> 4) * 0x9e3779b97f4a7c15u >> 58);
}

_Static_assert(NVML_CACHE_SLOTS == 1 << (64 - 58), "first_slot() is one of them");

/* Returns -1 if unknown. */
static int recall(struct nvml_cache *cache, nvmlDevice_t device, uint32_t age)
{
	for (size_t i = 0, at = first_slot(device); i < NVML_CACHE_SLOTS; i++, at++) {
		__typeof__(&cache->slot[0]) slot = &cache->slot[at % NVML_CACHE_SLOTS];
		void *there = __atomic_load_n(&slot->device, __ATOMIC_ACQUIRE);
		uint64_t answer;

		if (!there)
			break;
		if (there != device)
			continue;
		answer = __atomic_load_n(&slot->answer, __ATOMIC_RELAXED);
		return answer >> 32 == age ? (int)(uint32_t)answer - 1 : -1;
	}
	return -1;
}

/* If full, others are looked up each time. */
static void remember(struct nvml_cache *cache, nvmlDevice_t device, uint32_t age, int index)
{
	for (size_t i = 0, at = first_slot(device); i < NVML_CACHE_SLOTS; i++, at++) {
		__typeof__(&cache->slot[0]) slot = &cache->slot[at % NVML_CACHE_SLOTS];
		void *there = NULL;

		if (!__atomic_compare_exchange_n(&slot->device, &there, (void *)device, false,
		                                 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
		    there != device)
			continue;
		__atomic_store_n(&slot->answer, (uint64_t)age << 32 | (uint32_t)(index + 1),
		                 __ATOMIC_RELAXED);
		return;
	}
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
	struct nvml_cache *cache = process ? &state.nvml : NULL;
	int index = cache && device ? recall(cache, device, age) : -1;

	if (index >= 0)
		return index;
	index = find_ledger_device(process, device);
	if (index >= 0)
		remember(cache, device, age, index);
	return index;
}
