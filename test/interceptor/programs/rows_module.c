/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for modules: their arrays, and a buffer for printf. A load that does not fit is undone. */
#include "rows_code.h"

#include <string.h>
#include <unistd.h>

#define ARRAY (256 * MIB)

/* --- modules --- */

static CUresult by_data(CUmodule *module, const char *text)
{
	return cuModuleLoadData(module, text);
}

static CUresult by_data_ex(CUmodule *module, const char *text)
{
	return OPTIONAL(cuModuleLoadDataEx)(module, text, 0, NULL, NULL);
}

static CUresult by_fat_binary(CUmodule *module, const char *text)
{
	return OPTIONAL(cuModuleLoadFatBinary)(module, text);
}

static CUresult by_file(CUmodule *module, const char *text)
{
	char path[] = "/tmp/module-XXXXXX";
	int file = mkstemp(path);
	CUresult result;

	if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text))
		failed("no module in %s", path);
	close(file);
	result = OPTIONAL(cuModuleLoad)(module, path);
	unlink(path);
	return result;
}

/* The linker's image is loaded as any other; another row checks that linking takes nothing. */
static CUresult by_link(CUmodule *module, const char *text)
{
	CUlinkState state = NULL;
	CUresult result;
	void *image = NULL;
	size_t bytes = 0;

	OK(OPTIONAL(cuLinkCreate_v2)(0, NULL, NULL, &state));
	OK(OPTIONAL(cuLinkAddData_v2)(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text,
	                              strlen(text) + 1, "text", 0, NULL, NULL));
	OK(OPTIONAL(cuLinkComplete)(state, &image, &bytes));
	expect_charge("linked", 0);
	result = cuModuleLoadData(module, image);
	OK(OPTIONAL(cuLinkDestroy)(state));
	return result;
}

struct way {
	const char *name; /* of a function that the driver may lack */
	CUresult (*load)(CUmodule *module, const char *text);
};

static const struct way data_ways[] = {
    {"cuModuleLoadData", by_data}, {"cuModuleLoadDataEx", by_data_ex}, {0}};
static const struct way file_ways[] = {
    {"cuModuleLoad", by_file}, {"cuModuleLoadFatBinary", by_fat_binary}, {0}};
static const struct way link_ways[] = {{"cuLinkComplete", by_link}, {0}};

static void modules_within(const struct way *way)
{
	char *text = module_text(ARRAY, NULL);

	for (; way->name; way++) {
		CUmodule module = NULL;
		CUdeviceptr array = 0;
		size_t bytes = 0;

		if (!driver_symbol(way->name)) {
			report("no %s", way->name);
			continue;
		}
		if (way->load(&module, text) != CUDA_SUCCESS && way->load == by_fat_binary) {
			report("%s takes no text", way->name);
			continue;
		}
		expect_charge(way->name, (long long)ARRAY);
		if (driver_symbol("cuModuleGetGlobal_v2")) {
			OK(OPTIONAL(cuModuleGetGlobal_v2)(&array, &bytes, module, "big"));
			if (bytes != ARRAY)
				failed("the array is of %zu bytes", bytes);
			else
				usable("a module's array", array, ARRAY);
		}
		OK(cuModuleUnload(module));
		expect_charge("unloaded", 0);
		report("%s charges an array of %zu MiB until the module is unloaded", way->name,
		       ARRAY / MIB);
	}
}

static void modules_beyond(const struct way *way)
{
	char *text = module_text(ARRAY, NULL);
	CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);

	for (const struct way *w = way; w->name; w++) {
		CUmodule module = NULL;
		CUresult result;

		if (!driver_symbol(w->name))
			continue;
		result = w->load(&module, text);
		if (w->load != by_fat_binary || result == CUDA_SUCCESS)
			expect(w->name, result, CUDA_ERROR_OUT_OF_MEMORY);
		expect_charge("undone", 0);
	}
	give_room(pointer);
	expect_charge("freed", 0);
	for (const struct way *w = way; w->name; w++) {
		CUmodule module = NULL;

		if (driver_symbol(w->name) && w->load != by_fat_binary) {
			expect(w->name, w->load(&module, text), CUDA_SUCCESS);
			OK(cuModuleUnload(module));
		}
	}
	expect_charge("at the end", 0);
	report("an array of %zu MiB is refused with 32 less free, and loaded later", ARRAY / MIB);
}

static void data_within(void)
{
	modules_within(data_ways);
}

static void data_beyond(void)
{
	modules_beyond(data_ways);
}

static void file_within(void)
{
	modules_within(file_ways);
}

static void file_beyond(void)
{
	modules_beyond(file_ways);
}

static void link_within(void)
{
	modules_within(link_ways);
}

static void link_beyond(void)
{
	modules_beyond(link_ways);
}

/* Variables are charged once, at the load, wherever their pages are. */
static void managed_within(void)
{
	static const struct way ways[] = {{"cuModuleLoadData", by_data},
	                                  {"cuModuleLoadDataEx", by_data_ex},
	                                  {"cuModuleLoad", by_file},
	                                  {"cuLinkComplete", by_link},
	                                  {0}};
	char *text = managed_text(ARRAY);

	for (const struct way *way = ways; way->name; way++) {
		CUmodule module = NULL;
		CUdeviceptr big = 0;
		size_t bytes = 0;

		if (!driver_symbol(way->name))
			continue;
		expect(way->name, way->load(&module, text), CUDA_SUCCESS);
		expect_charge(way->name, (long long)ARRAY);
		OK(OPTIONAL(cuModuleGetGlobal_v2)(&big, &bytes, module, "big"));
		if (bytes != ARRAY)
			failed("the variable is of %zu bytes", bytes);
		else
			usable("a managed variable", big, ARRAY);
		expect_charge("used", (long long)ARRAY);
		OK(cuModuleUnload(module));
		expect_charge("unloaded", 0);
	}
	report("a managed variable of %zu MiB is charged until its module is unloaded",
	       ARRAY / MIB);
}

static void managed_beyond(void)
{
	CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);
	char *text = managed_text(ARRAY), *huge = managed_text(12 * GIB);
	CUmodule module = NULL;

	OUT_OF_MEMORY("a managed variable", cuModuleLoadData(&module, text));
	expect_charge("undone", 0);
	give_room(pointer);
	OUT_OF_MEMORY("one of 12 GiB", cuModuleLoadData(&module, huge));
	expect_charge("undone", 0);
	OK(cuModuleLoadData(&module, text));
	OK(cuModuleUnload(module));
	expect_charge("at the end", 0);
	report("a managed variable of %zu MiB is refused with 32 less free, as one of 12 GiB",
	       ARRAY / MIB);
}

/* Many small modules, as programs with run-time compilation have. */
static void many_within(void)
{
	static CUmodule modules[64];
	char *text = module_text(3 * MIB, NULL);

	for (unsigned i = 0; i < 64; i++)
		modules[i] = load(text);
	expect_charge("64 arrays of 3 MiB", 256 * (long long)MIB);
	for (unsigned i = 0; i < 64; i++)
		OK(cuModuleUnload(modules[i]));
	expect_charge("unloaded", 0);
	report("64 arrays of 3 MiB charge 4 each");
}

static void many_beyond(void)
{
	char *text = module_text(64 * MIB, NULL);
	CUmodule modules[128] = {NULL};
	size_t count = 0;
	CUresult result = CUDA_SUCCESS;
	size_t room = part(0.5);

	(void)fill(room);
	while (count < 128 && result == CUDA_SUCCESS) {
		result = cuModuleLoadData(&modules[count], text);
		count += result == CUDA_SUCCESS;
	}
	expect("the first that does not fit", result, CUDA_ERROR_OUT_OF_MEMORY);
	if (count * 64 * MIB > room + 64 * MIB || (count + 2) * 64 * MIB < room)
		failed("%zu arrays of 64 MiB were loaded into %zu MiB", count, room / MIB);
	for (size_t i = 0; i < count; i++)
		OK(cuModuleUnload(modules[i]));
	report("%zu arrays of 64 MiB fit %zu MiB, the next one is refused", count, room / MIB);
}

/* --- printf --- */

/* The size depends on the driver; it must be charged. */
static void print_within(void)
{
	CUfunction function = NULL;
	CUmodule module;

	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 512 * MIB));
	agrees("a buffer of 512 MiB for printf", SLACK);
	module = load(printing_module_text());
	agrees("a module that prints", SLACK);
	OK(cuModuleGetFunction(&function, module, "prints"));
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	OK(cuCtxSynchronize());
	agrees("launched", SLACK);
	OK(cuModuleUnload(module));
	report("what a buffer for printf takes is charged when it is taken");
}

static void print_beyond(void)
{
	CUmodule module = NULL;
	CUresult result;
	CUdeviceptr pointer;

	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 512 * MIB));
	pointer = fill(4 * MIB);
	/* An H100 takes 64 MiB here. */
	result = cuModuleLoadData(&module, printing_module_text());
	if (result != CUDA_SUCCESS)
		expect("a module that prints, in a full slice", result, CUDA_ERROR_OUT_OF_MEMORY);
	agrees("in a full slice", SLACK);
	OK(cuMemFree_v2(pointer));
	if (result != CUDA_SUCCESS)
		OK(cuModuleLoadData(&module, printing_module_text()));
	OK(cuModuleUnload(module));
	report("with 4 MiB free it is %s",
	       result == CUDA_SUCCESS ? "granted: it takes less" : "refused");
}

const struct row module_rows[] = {
    {"code-module", "cuModuleLoadData cuModuleLoadDataEx cuModuleUnload", data_within,
     .beyond = data_beyond},
    {"code-file", "cuModuleLoad cuModuleLoadFatBinary cuModuleUnload", file_within,
     .beyond = file_beyond},
    {"code-linked", "cuModuleLoadData cuModuleUnload", link_within, .beyond = link_beyond},
    {"code-managed",
     "cuModuleLoadData cuModuleLoadDataEx cuModuleLoad cuModuleGetGlobal_v2 cuModuleUnload",
     managed_within, .beyond = managed_beyond},
    {"code-many", "cuModuleLoadData cuModuleUnload", many_within, .beyond = many_beyond},
    {"code-printf", "cuCtxSetLimit cuModuleLoadData", print_within, .beyond = print_beyond},
    {0}};
