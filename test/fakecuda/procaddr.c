/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: the second way to each entry point. It returns the exported symbol itself, so
 * that callers cannot distinguish the two ways.
 */
#include "procaddr.h"
#include "config.h"
#include "driver.h"

#include <string.h>

#define KNOWN_FLAGS                                                                                \
	(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* Forms of no existing driver: future.c. */
#define FUTURE 99000

/* The newest form known to `version`; the per-thread one if requested and present. */
static const struct entry *find(const char *name, int version, bool per_thread, bool *named)
{
	const struct entry *best = NULL;

	*named = false;
	for (size_t i = 0; i < entry_count; i++) {
		const struct entry *entry = &entries[i];

		if (strcmp(entry->name, name) != 0)
			continue;
		*named = true;
		if (entry->since > version || (entry->per_thread && !per_thread))
			continue;
		if (entry->since >= FUTURE && !config_is("FAKECUDA_FUTURE", "1"))
			continue;
		if (!best || entry->per_thread >= best->per_thread)
			best = entry;
	}
	return best;
}

/* Sets *status, and *out to NULL if there is no such function; the call succeeds in both cases. */
static CUresult resolve(const char *name, void **out, int version, uint64_t flags, int *status)
{
	const struct entry *entry;
	bool named;

	if (!name || !*name || !out || flags & ~(uint64_t)KNOWN_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	entry = find(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &named);
	if (entry) {
		memcpy(out, &entry->function, sizeof(*out));
		*status = CU_GET_PROC_ADDRESS_SUCCESS;
		return CUDA_SUCCESS;
	}
	*out = NULL;
	*status = named ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
	                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

/* Both forms work before cuInit, too. */
CUDA_API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	int status;
	CUresult result = resolve(name, out, version, flags, &status);

	/* The older form has no status to report it. */
	if (result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	return result;
}

CUDA_API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                      int *status)
{
	int ignored;

	return resolve(name, out, version, flags, status ? status : &ignored);
}
