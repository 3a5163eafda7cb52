/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include "gate.h"
#include "listed.h"
#include "process.h"
#include "say.h"

#include <stddef.h>
#include <string.h>

/* NULL: called, not hooked. */
static void *const hooks[ENTRY_POINTS] = {
#define HOOK(name, arguments, charged, released) [ID_##name] = (void *)name,
#define CALL(name, arguments)
#include "driver.def"
#define HOOK(name, arguments, shown, released) [ID_##name] = (void *)name,
#define CALL(name, arguments)
#include "nvml.def"
};

/* Returns a function's hook, or NULL. *known is whether the table has the function. */
static void *hook_of(const struct library *library, const void *function, bool *known)
{
	const void *stub = gate_made(function);

	for (enum entry_point entry = library->first; entry < library->last; entry++) {
		if (entry_function[entry] == function || (stub && entry_function[entry] == stub)) {
			*known = true;
			return hooks[entry];
		}
	}
	*known = false;
	return NULL;
}

void *answer_name(const struct library *library, const struct elf_object *object, const char *name)
{
	void *function = elf_find_symbol(object, name);
	bool known;
	void *hook = function ? hook_of(library, function, &known) : NULL;

	if (hook || !function)
		return hook;
	return library_gate(library, name, function);
}

/* Reports whether another version has a hook: of cuMemAlloc for cuMemAlloc_v2_ptsz. */
static bool other_version_is_hooked(const char *name)
{
	size_t length = strcspn(name, "_");

	for (enum entry_point entry = 0; entry < DRIVER_ENTRY_POINTS; entry++) {
		if (hooks[entry] && strncmp(entry_name[entry], name, length) == 0 &&
		    (entry_name[entry][length] == '_' || !entry_name[entry][length]))
			return true;
	}
	return false;
}

/* Reports whether the function only reads. Excludes memory and code, which the driver may load for
 * a query. */
static bool only_reads(const char *name)
{
	static const char *const others[] = {"Mem", "Library", "Module", "Function"};
	const char *verb = strstr(name, "Get");

	if (!verb || verb == name + 2)
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		if (strstr(name, others[i]))
			return false;
	}
	return true;
}

/* Warns of a function without a row in the table: only driver truth counts its memory. `cuda` is
 * the requested CUDA version, as 13010; 0 if the name has it. */
static void warn_of_unknown(const char *name, int cuda)
{
	struct process *process;

	if (listed(name, cuda != 0) || only_reads(name))
		return;
	process = process_get();
	if (!other_version_is_hooked(name))
		say_once(
		    process, ONCE_UNLISTED,
		    "%s is not known to this gpuslice: driver truth alone counts what it allocates",
		    name);
	else if (cuda)
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s of CUDA %d.%d is newer than this gpuslice: driver truth alone counts "
		         "what it allocates",
		         name, cuda / 1000, cuda % 1000 / 10);
	else
		say_once(process, ONCE_UNKNOWN_VERSION,
		         "%s is newer than this gpuslice: driver truth alone counts what it "
		         "allocates",
		         name);
}

void *answer(struct library *library, void *found, const char *name, int cuda)
{
	struct elf_object object;
	bool known;
	void *hook = hook_of(library, found, &known);

	if (!known && library == &library_cuda)
		warn_of_unknown(name, cuda);
	if (hook || !gate_is_elastic())
		return hook ? hook : found;
	/* dlsym may have found a variable. */
	if (!cuda && !(library_find(library, &object) && elf_find_symbol(&object, name)))
		return found;
	return library_gate(library, name, found);
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	CUresult result = DRIVER(cuGetProcAddress)(name, function, version, flags);

	if (result == CUDA_SUCCESS && function && *function)
		*function = answer(&library_cuda, *function, name, version);
	return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *status)
{
	CUresult result = DRIVER(cuGetProcAddress_v2)(name, function, version, flags, status);

	if (result == CUDA_SUCCESS && function && *function)
		*function = answer(&library_cuda, *function, name, version);
	return result;
}
