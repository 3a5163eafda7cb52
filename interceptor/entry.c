/* SPDX-License-Identifier: Apache-2.0 */
#include "entry.h"

#include "gate.h"
#include "text.h"

#include <stddef.h>
#include <string.h>

/* In the order of enum entry_point and of the bindings of entry.S. */
const char *const entry_name[ENTRY_POINTS] = {
#define HOOK(name, arguments, charged, released) [ID_##name] = #name,
#define CALL(name, arguments) [ID_##name] = #name,
#include "driver.def"
#define HOOK(name, arguments, shown, released) [ID_##name] = #name,
#define CALL(name, arguments) [ID_##name] = #name,
#include "nvml.def"
};

static int absent_driver(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

static int absent_nvml(void)
{
	return library_nvml.base ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

struct library library_cuda = {.soname = "libcuda.so.1",
                               .first = 0,
                               .last = DRIVER_ENTRY_POINTS,
                               .absent = (void *)absent_driver};
struct library library_nvml = {.soname = "libnvidia-ml.so.1",
                               .first = DRIVER_ENTRY_POINTS,
                               .last = ENTRY_POINTS,
                               .absent = (void *)absent_nvml};

/* Functions that only report, and those that move the memory, do not pass the gate. */
static bool passes_gate(const char *name)
{
	return library_of(name) == &library_cuda && !text_begins(name, "cudbg") &&
	       !text_begins(name, "cuGetProcAddress") &&
	       !text_begins(name, "cuCheckpointProcess") && !text_equal(name, "cuGetErrorName") &&
	       !text_equal(name, "cuGetErrorString") && !text_equal(name, "cuDriverGetVersion");
}

void *library_gate(const struct library *library, const char *name, void *function)
{
	return library == &library_cuda && gate_is_elastic() && passes_gate(name)
	           ? gate_of(function)
	           : function;
}

bool library_find(struct library *library, struct elf_object *object)
{
	struct elf_object found;

	if (__atomic_load_n(&library->adopted, __ATOMIC_ACQUIRE) == 2)
		found = library->object;
	else if (!elf_find_object(library->soname, &found))
		return false;
	if (object)
		*object = found;
	if (found.base == __atomic_load_n(&library->base, __ATOMIC_ACQUIRE))
		return true;
	/* Several threads may do this at once: they store the same values. */
	for (enum entry_point entry = library->first; entry < library->last; entry++) {
		void *function = elf_find_symbol(&found, entry_name[entry]);

		if (function)
			function = library_gate(library, entry_name[entry], function);
		__atomic_store_n(&entry_function[entry], function ? function : library->absent,
		                 __ATOMIC_RELEASE);
	}
	__atomic_fetch_add(&library->fills, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&library->base, found.base, __ATOMIC_RELEASE);
	return true;
}

void library_adopt(struct library *library, const struct elf_object *object, unsigned int namespace)
{
	uint32_t none = 0;

	if (library_find(library, NULL) ||
	    !__atomic_compare_exchange_n(&library->adopted, &none, 1, false, __ATOMIC_RELAXED,
	                                 __ATOMIC_RELAXED))
		return;
	library->object = *object;
	library->namespace = namespace;
	__atomic_store_n(&library->adopted, 2, __ATOMIC_RELEASE);
	(void)library_find(library, NULL);
}

static struct library *library_with(enum entry_point entry)
{
	return entry < DRIVER_ENTRY_POINTS ? &library_cuda : &library_nvml;
}

bool entry_exists(enum entry_point entry)
{
	struct library *library = library_with(entry);

	if (!__atomic_load_n(&library->base, __ATOMIC_ACQUIRE) && !library_find(library, NULL))
		return false;
	return __atomic_load_n(&entry_function[entry], __ATOMIC_RELAXED) != library->absent;
}

/* Called by the bindings. Return the function to call. */
__attribute__((visibility("hidden"))) void *entry_bind(enum entry_point entry);
void *entry_bind(enum entry_point entry)
{
	struct library *library = library_with(entry);

	if (!library_find(library, NULL))
		return library->absent;
	return __atomic_load_n(&entry_function[entry], __ATOMIC_ACQUIRE);
}
