/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "library.h"

#include "config.h"
#include "module.h"
#include "ptx.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

struct CUlib_st {
	CUlibrary next; /* all libraries of the process */
	struct image *image;
	CUkernel kernels; /* requested so far */
	CUmodule modules; /* one for each context with it */
};

static CUlibrary all;

/* Read once, since a program may change its environment. Expects the lock held, as all functions
 * but entry points do. */
bool library_is_eager(void)
{
	static enum { UNKNOWN, LAZY, EAGER } mode;

	if (mode == UNKNOWN)
		mode = config_is("CUDA_MODULE_LOADING", "EAGER") ? EAGER : LAZY;
	return mode == EAGER;
}

void library_forget(CUlibrary library, CUmodule module)
{
	CUmodule *link = &library->modules;

	while (*link != module)
		link = &(*link)->next;
	*link = module->next;
}

static CUresult load_into(CUcontext context, CUlibrary library, CUmodule *out)
{
	CUcontext holder = context->parent ? context->parent : context;
	CUmodule module;

	for (module = library->modules; module; module = module->next)
		if (module->owned.context == holder) {
			*out = module;
			return CUDA_SUCCESS;
		}
	TRY(module_create(holder, library->image, &module));
	module->library = library;
	module->next = library->modules;
	library->modules = module;
	*out = module;
	return CUDA_SUCCESS;
}

CUresult library_function(CUcontext context, CUkernel kernel, CUfunction *out)
{
	CUmodule module;
	CUresult result = load_into(context, kernel->library, &module);

	return result == CUDA_SUCCESS ? module_function(module, kernel->name, out) : result;
}

static void destroy(CUlibrary library)
{
	while (library->modules)
		module_destroy(library->modules);
	while (library->kernels) {
		CUkernel kernel = library->kernels;

		library->kernels = kernel->next;
		free(kernel->name);
		free(kernel);
	}
	image_drop(library->image);
	free(library);
}

/* Needs no context. If there is one and the driver is eager, the library is loaded there at
 * once. */
static CUresult load(CUlibrary *out, const void *text, struct jit_log log)
{
	CUcontext context = context_current();
	CUlibrary library;
	CUmodule module;
	CUresult result;

	DRIVER_ENTER();
	if (!out || !text)
		return CUDA_ERROR_INVALID_VALUE;
	library = calloc(1, sizeof(*library));
	if (!library)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = image_read(text, &log, &library->image);
	if (result != CUDA_SUCCESS) {
		free(library);
		return result;
	}
	if (library_is_eager() && context && context->alive)
		result = load_into(context, library, &module);
	if (result != CUDA_SUCCESS) {
		destroy(library);
		return result;
	}
	library->next = all;
	all = library;
	*out = library;
	return CUDA_SUCCESS;
}

/* Options of a library, the last arguments, have no effect. */
CUDA_API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *jit_options,
                                    void **jit_values, unsigned int jit_count)
{
	return load(out, image, jit_log_of(jit_count, jit_options, jit_values));
}

CUDA_API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit_options,
                                        void **jit_values, unsigned int jit_count)
{
	char *text;
	CUresult result = path ? image_load_file(path, &text) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = load(out, text, jit_log_of(jit_count, jit_options, jit_values));
	free(text);
	return result;
}

static CUlibrary *link_to(CUlibrary library)
{
	CUlibrary *link = &all;

	while (*link && *link != library)
		link = &(*link)->next;
	return link;
}

/* Leaves the lock held only on success. */
static CUresult enter_library(CUlibrary library, const void *out)
{
	TRY(driver_enter());
	if (!library || !*link_to(library))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	return out ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUDA_API CUresult cuLibraryUnload(CUlibrary library)
{
	DRIVER_ENTER_BY(enter_library(library, library));
	work_wait_all(NULL);
	*link_to(library) = library->next;
	destroy(library);
	return CUDA_SUCCESS;
}

static CUresult find_kernel(CUlibrary library, const char *name, CUkernel *out)
{
	const struct symbols *kernels = &library->image->kernels;
	const struct symbol *symbol = image_find(kernels, name);
	CUkernel kernel;

	for (kernel = library->kernels; kernel; kernel = kernel->next)
		if (strcmp(kernel->name, name) == 0) {
			*out = kernel;
			return CUDA_SUCCESS;
		}
	if (!symbol && kernels->count)
		return CUDA_ERROR_NOT_FOUND;
	kernel = calloc(1, sizeof(*kernel));
	if (!kernel)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*kernel = (struct CUkern_st){
	    .what = LAUNCHABLE_KERNEL,
	    .next = library->kernels,
	    .library = library,
	    .name = strdup(name),
	    .frame = symbol ? symbol->bytes : 0,
	    .code = library->image->ptx ? ptx_find(library->image->ptx, name) : NULL};
	if (!kernel->name) {
		free(kernel);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	library->kernels = kernel;
	*out = kernel;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
	DRIVER_ENTER_BY(enter_library(library, out));
	return name ? find_kernel(library, name, out) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int count, CUlibrary library)
{
	const struct symbols *kernels;
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_BY(enter_library(library, out));
	kernels = &library->image->kernels;
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (i < kernels->count)
			result = find_kernel(library, kernels->list[i].name, &out[i]);
		else
			out[i] = NULL;
	}
	return result;
}

/* The library in the current context. Leaves the lock held only on success. */
static CUresult enter_loaded(CUlibrary library, CUmodule *out)
{
	CUcontext context;
	CUresult result;

	TRY(driver_enter_context(&context));
	if (!library || !*link_to(library))
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	result = load_into(context, library, out);
	return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUDA_API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	CUmodule module = NULL;

	TRY(out ? enter_loaded(library, &module) : CUDA_ERROR_INVALID_VALUE);
	*out = module;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library,
                                     const char *name)
{
	CUmodule module = NULL;

	TRY(name ? enter_loaded(library, &module) : CUDA_ERROR_INVALID_VALUE);
	return driver_leave(module_array(module, name, address, size));
}

/* An unknown variable loads nothing (driver observation, H100, 580.159.04). */
static CUresult seek_managed(CUlibrary library, const char *name, bool any_output)
{
	const struct symbol *symbol;

	DRIVER_ENTER_BY(enter_library(library, name));
	symbol = image_find(&library->image->arrays, name);
	if (!any_output)
		return CUDA_ERROR_INVALID_VALUE;
	return symbol && symbol->is_managed ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUDA_API CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library,
                                      const char *name)
{
	CUresult result = seek_managed(library, name, address || size);

	return result == CUDA_SUCCESS ? cuLibraryGetGlobal(address, size, library, name) : result;
}

/* Images have no unified functions. The real driver loads nothing for this answer. */
CUDA_API CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
	(void)function;
	DRIVER_ENTER_BY(enter_library(library, name));
	return CUDA_ERROR_INVALID_VALUE;
}
