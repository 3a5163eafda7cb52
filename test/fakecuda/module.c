/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "module.h"

#include "kernel.h"
#include "library.h"
#include "limit.h"
#include "managed.h"
#include "overhead.h"
#include "ptx.h"
#include "vram.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

static void free_module(struct owned *owned)
{
	CUmodule module = (CUmodule)owned;
	struct range *managed = NULL;

	while (module->functions) {
		CUfunction function = module->functions;

		module->functions = function->next;
		free(function->name);
		free(function);
	}
	if (module->arrays.size) {
		ranges_remove(&allocations, &module->arrays);
		address_free(module->arrays.start, round_up(module->arrays.size, ADDRESS_STEP));
	}
	if (module->managed) /* it may have ended with the context */
		managed = ranges_at(&allocations, module->managed);
	if (managed)
		managed_free(managed);
	if (module->library)
		library_forget(module->library, module);
	overhead_give_code(owned->context, module->image->bytes);
	overhead_give_code(owned->context, module->printf_code);
	image_drop(module->image);
	free(module);
}

CUresult module_create(CUcontext context, struct image *image, CUmodule *out)
{
	CUmodule module = calloc(1, sizeof(*module));
	CUresult result;

	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = overhead_take_code(context, image->bytes);
	if (result != CUDA_SUCCESS)
		goto no_memory;
	if (image->uses_printf)
		result = limit_back_fifo(context, &module->printf_code);
	if (result != CUDA_SUCCESS)
		goto no_fifo;
	if (image->managed)
		result = managed_allocate(context, image->managed, &module->managed);
	if (result != CUDA_SUCCESS)
		goto no_managed;
	module->image = image_hold(image);
	context_own(context, &module->owned, free_module);
	*out = module;
	return CUDA_SUCCESS;
no_managed:
	overhead_give_code(context, module->printf_code);
no_fifo:
	overhead_give_code(context, image->bytes);
no_memory:
	free(module);
	return result;
}

void module_destroy(CUmodule module)
{
	context_disown(&module->owned);
	free_module(&module->owned);
}

CUresult module_function(CUmodule module, const char *name, CUfunction *out)
{
	const struct symbols *kernels = &module->image->kernels;
	const struct symbol *symbol = image_find(kernels, name);
	CUfunction function;

	for (function = module->functions; function; function = function->next)
		if (strcmp(function->name, name) == 0) {
			*out = function;
			return CUDA_SUCCESS;
		}
	if (!symbol && kernels->count)
		return CUDA_ERROR_NOT_FOUND;
	function = calloc(1, sizeof(*function));
	if (!function)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*function = (struct CUfunc_st){
	    .what = LAUNCHABLE_FUNCTION,
	    .next = module->functions,
	    .module = module,
	    .name = strdup(name),
	    .frame = symbol ? symbol->bytes : 0,
	    .code = module->image->ptx ? ptx_find(module->image->ptx, name) : NULL,
	    .uses_malloc = strstr(name, "malloc"),
	    .uses_printf = strstr(name, "printf")};
	if (!function->name) {
		free(function);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	module->functions = function;
	*out = function;
	return CUDA_SUCCESS;
}

/* Initial values are host memory, unless they are 0. */
static bool fill_arrays(CUmodule module)
{
	const struct range *arrays = &module->arrays;
	const struct ptx *ptx = module->image->ptx;

	if (!ptx || !ptx_has_array_values(ptx))
		return true;
	if (!address_back(arrays->start, arrays->size))
		return false;
	ptx_fill_arrays(ptx, (char *)(uintptr_t)arrays->start);
	return true;
}

/* The memory was taken with the module; this gives it addresses. */
CUdeviceptr module_arrays(CUmodule module)
{
	struct range *arrays = &module->arrays;
	uint64_t size = round_up(module->image->bytes, ADDRESS_STEP);

	if (arrays->size)
		return arrays->start;
	*arrays = (struct range){.kind = RANGE_CODE, .size = module->image->bytes};
	arrays->start = address_reserve(size, ADDRESS_STEP);
	if (arrays->start && fill_arrays(module) && ranges_add(&allocations, arrays))
		return arrays->start;
	if (arrays->start)
		address_free(arrays->start, size);
	arrays->size = 0;
	return 0;
}

CUresult module_array(CUmodule module, const char *name, CUdeviceptr *address, size_t *size)
{
	const struct symbol *symbol = image_find(&module->image->arrays, name);
	CUdeviceptr start;

	if (!symbol)
		return CUDA_ERROR_NOT_FOUND;
	start = symbol->is_managed ? module->managed : module_arrays(module);
	if (!start)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (address)
		*address = start + symbol->offset;
	if (size)
		*size = symbol->bytes;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, const void *text, struct jit_log log)
{
	struct image *image;
	CUresult result;

	DRIVER_ENTER_CONTEXT(context);
	if (!out || !text)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(image_read(text, &log, &image));
	result = module_create(context, image, out);
	image_drop(image);
	return result;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(out, image, (struct jit_log){0});
}

CUDA_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
                                     int *options, void **values)
{
	return load(out, image, jit_log_of(count, options, values));
}

CUDA_API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load(out, image, (struct jit_log){0});
}

CUDA_API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *text;
	CUresult result = path ? image_load_file(path, &text) : CUDA_ERROR_INVALID_VALUE;

	if (result != CUDA_SUCCESS)
		return result;
	result = load(out, text, (struct jit_log){0});
	free(text);
	return result;
}

/* Takes the lock, and gives it back after an error. DRIVER_ENTER_BY gives it back when its caller
 * returns (driver.h). */
static CUresult enter_module(CUmodule module)
{
	CUcontext context;
	CUresult result = driver_enter_context(&context);

	if (result == CUDA_SUCCESS && !module)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	return result;
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
	DRIVER_ENTER_BY(enter_module(module));
	/* A library's module is unloaded with the library. */
	if (module->library)
		return CUDA_ERROR_INVALID_HANDLE;
	work_wait_all(NULL);
	module_destroy(module);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
	DRIVER_ENTER_BY(enter_module(module));
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return module_function(module, name, out);
}

CUDA_API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int count, CUmodule module)
{
	CUresult result = CUDA_SUCCESS;

	DRIVER_ENTER_BY(enter_module(module));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
		if (i < module->image->kernels.count)
			result =
			    module_function(module, module->image->kernels.list[i].name, &out[i]);
		else
			out[i] = NULL;
	}
	return result;
}

CUDA_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
                                       const char *name)
{
	DRIVER_ENTER_BY(enter_module(module));
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	return module_array(module, name, address, size);
}

CUDA_API CUresult cuModuleGetLoadingMode(int *mode)
{
	DRIVER_ENTER();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = library_is_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}
