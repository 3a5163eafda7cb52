/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code takes device memory: a module's when it is loaded, a library's at its first use in a
 * context, unless CUDA_MODULE_LOADING is EAGER (driver observation, H100, 580.159.04). The amount
 * is known afterwards. A load that does not fit is undone. A first use cannot be: its memory stays
 * charged, and the use fails.
 */
#include "function.h"
#include "hold.h"
#include "library.h"
#include "managed.h"
#include "overhead.h"
#include "state.h"
#include "table.h"

#include <string.h>

enum { LOADING_LAZY = 2 }; /* CUmoduleLoadingMode */

/* --- modules -------------------------------------------------------------------------------- */

static CUresult loaded(const struct watch *watch, CUresult result, CUmodule *module,
                       const void *image, const char *file)
{
	struct holding code = {.ordinal = watch->ordinal, .kind = KIND_OVERHEAD};
	bool fits;

	if (result != CUDA_SUCCESS) {
		watch_drop(watch);
		return result;
	}
	fits = watch_end(watch, LEDGER_CALL_CODE, &code.bytes);
	if (fits && code.bytes) {
		code.owner = context_current();
		hold(map_key_of(*module), &code);
	}
	if (!fits || !managed_load(*module, managed_names(image, file))) {
		(void)cuModuleUnload(*module);
		*module = NULL;
		overhead_settle(watch->ordinal); /* the part that the driver keeps */
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

#define LOADS(name, parameters, arguments, image, file)                                            \
	CUresult name parameters                                                                   \
	{                                                                                          \
		struct watch watch = watch_begin();                                                \
                                                                                                   \
		return loaded(&watch, DRIVER(name) arguments, module, image, file);                \
	}

LOADS(cuModuleLoad, (CUmodule * module, const char *file), (module, file), NULL, file)
LOADS(cuModuleLoadData, (CUmodule * module, const void *image), (module, image), image, NULL)
LOADS(cuModuleLoadDataEx,
      (CUmodule * module, const void *image, unsigned int count, int *options, void **values),
      (module, image, count, options, values), image, NULL)
LOADS(cuModuleLoadFatBinary, (CUmodule * module, const void *image), (module, image), image, NULL)

CUresult cuModuleUnload(CUmodule module)
{
	struct holding code;
	bool known = unhold(map_key_of(module), &code);
	CUresult result;

	/* Before the call, since the driver may reuse the handles at once. */
	function_source_gone(map_key_of(module));
	hold_source_leave(map_key_of(module));
	if (!known)
		code.ordinal = process_current_ordinal();
	overhead_change_begin(code.ordinal);
	result = hold_source_left(DRIVER(cuModuleUnload)(module), map_key_of(module));
	if (known)
		result = release_or_hold(result, map_key_of(module), &code);
	overhead_change_end(code.ordinal);
	overhead_settle_loose(code.ordinal);
	return result;
}

static CUresult asked(CUresult result, CUmodule module, const char *name)
{
	if (result == CUDA_SUCCESS && !managed_asked(module, name, true))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                              const char *name)
{
	return asked(DRIVER(cuModuleGetGlobal_v2)(pointer, bytes, module, name), module, name);
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *pointer, unsigned int *bytes, CUmodule module,
                           const char *name)
{
	return asked(DRIVER(cuModuleGetGlobal)(pointer, bytes, module, name), module, name);
}

static void note_function(CUfunction function, CUmodule module)
{
	function_note(function, map_key_of(module), function_frame_of(function, NULL), false);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result = DRIVER(cuModuleGetFunction)(function, module, name);

	if (result == CUDA_SUCCESS)
		note_function(*function, module);
	return result;
}

/* --- libraries ------------------------------------------------------------------------------ */

static CUresult loaded_library(const struct watch *watch, CUresult result, CUlibrary *library,
                               const void *image, const char *file)
{
	uint64_t bytes;
	bool fits;

	if (result != CUDA_SUCCESS) {
		watch_drop(watch);
		return result;
	}
	managed_keep(map_key_of(*library), managed_names(image, file));
	fits = watch_end(watch, LEDGER_CALL_CODE, &bytes);
	if (fits && bytes)
		function_library_took(map_key_of(*library), watch->ordinal, bytes);
	/* (A lazy one was not watched, and has taken nothing yet.) */
	if (!fits || (watch->ordinal >= 0 && !managed_use(map_key_of(*library)))) {
		(void)cuLibraryUnload(*library);
		*library = NULL;
		overhead_settle(watch->ordinal);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return result;
}

static bool loads_lazily(void)
{
	int mode = 0;

	return DRIVER_HAS(cuModuleGetLoadingMode) &&
	       DRIVER(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == LOADING_LAZY;
}

static struct watch watch_library(void)
{
	return loads_lazily() ? (struct watch){.ordinal = -1} : watch_begin();
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                           void **jit_values, unsigned int jit_count, int *options, void **values,
                           unsigned int count)
{
	struct watch watch = watch_library();

	return loaded_library(&watch,
	                      DRIVER(cuLibraryLoadData)(library, code, jit_options, jit_values,
	                                                jit_count, options, values, count),
	                      library, code, NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *file, int *jit_options,
                               void **jit_values, unsigned int jit_count, int *options,
                               void **values, unsigned int count)
{
	struct watch watch = watch_library();

	return loaded_library(&watch,
	                      DRIVER(cuLibraryLoadFromFile)(library, file, jit_options, jit_values,
	                                                    jit_count, options, values, count),
	                      library, NULL, file);
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUdevice ordinal = process_current_ordinal();
	CUresult result;

	function_source_gone(map_key_of(library));
	managed_forget(map_key_of(library));
	hold_source_leave(map_key_of(library));
	overhead_change_begin(ordinal);
	result = hold_source_left(DRIVER(cuLibraryUnload)(library), map_key_of(library));
	overhead_change_end(ordinal);
	overhead_settle_loose(ordinal);
	return result;
}

/* The result of a call that may be the first use of a library. */
#define USING(library, call)                                                                       \
	({                                                                                         \
		struct use use;                                                                    \
                                                                                                   \
		library_use_begin(&use, library) ? library_use_end(&use, call)                     \
		                                 : CUDA_ERROR_OUT_OF_MEMORY;                       \
	})

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	return USING(map_key_of(library), DRIVER(cuLibraryGetModule)(module, library));
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                            const char *name)
{
	return USING(map_key_of(library),
	             DRIVER(cuLibraryGetGlobal)(pointer, bytes, library, name));
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                             const char *name)
{
	CUresult result =
	    USING(map_key_of(library), DRIVER(cuLibraryGetManaged)(pointer, bytes, library, name));

	if (result == CUDA_SUCCESS && !managed_asked_of_library(map_key_of(library), name))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return result;
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *symbol)
{
	return USING(map_key_of(library),
	             DRIVER(cuLibraryGetUnifiedFunction)(function, library, symbol));
}

/* A kernel is launched by its own handle or its function's; either may be the first use. */
static void note_kernel(CUkernel kernel, CUlibrary library)
{
	function_note(kernel, map_key_of(library), function_frame_of(NULL, kernel), true);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUresult result = DRIVER(cuLibraryGetKernel)(kernel, library, name);

	if (result == CUDA_SUCCESS)
		note_kernel(*kernel, library);
	return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	struct function known;
	CUresult result;

	(void)function_find(kernel, &known);
	result = USING(known.source, DRIVER(cuKernelGetFunction)(function, kernel));
	if (result == CUDA_SUCCESS && known.frame > STACK_DEFAULT)
		function_note(*function, known.source, known.frame, false);
	return result;
}

/* --- functions and kernels ------------------------------------------------------------------ */

/* Gets the kernels of a library, or the functions of a module. Handles that the driver does not
 * fill are NULL. */
static CUresult enumerate(bool kernels, void *list, unsigned int count, void *source)
{
	CUresult result;
	void *handle;

	if (list && count)
		memset(list, 0, count * sizeof(handle));
	result = kernels ? DRIVER(cuLibraryEnumerateKernels)(list, count, source)
	                 : DRIVER(cuModuleEnumerateFunctions)(list, count, source);
	for (size_t i = 0; result == CUDA_SUCCESS && list && i < count; i++) {
		memcpy(&handle, (unsigned char *)list + i * sizeof(handle), sizeof(handle));
		if (!handle)
			break;
		if (kernels)
			note_kernel(handle, source);
		else
			note_function(handle, source);
	}
	return result;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module)
{
	return enumerate(false, functions, count, module);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library)
{
	return enumerate(true, kernels, count, library);
}
