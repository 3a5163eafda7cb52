/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver takes for modules and libraries: their arrays, and a buffer for what they print.
 * A load is undone if it does not fit. */
#include "rows_code.h"

#include <string.h>
#include <unistd.h>

#define ARRAY (256 * MIB)

/* --- modules --- */

/* The ways to load a module from its text. */
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

/* The linker's image is loaded as any other; that it takes nothing itself is looked at apart. */
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
	takes("linked", 0);
	result = cuModuleLoadData(module, image);
	OK(OPTIONAL(cuLinkDestroy)(state));
	return result;
}

struct way {
	const char *name; /* of what a driver may lack */
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

	begin();
	for (; way->name; way++) {
		CUmodule module = NULL;
		CUdeviceptr array = 0;
		size_t bytes = 0;

		if (!driver_symbol(way->name)) {
			saw("no %s", way->name);
			continue;
		}
		if (way->load(&module, text) != CUDA_SUCCESS && way->load == by_fat_binary) {
			saw("%s takes no text", way->name);
			continue;
		}
		takes(way->name, (long long)ARRAY);
		if (driver_symbol("cuModuleGetGlobal_v2")) {
			OK(OPTIONAL(cuModuleGetGlobal_v2)(&array, &bytes, module, "big"));
			if (bytes != ARRAY)
				failed("the array is of %zu bytes", bytes);
			else
				usable("a module's array", array, ARRAY);
		}
		OK(cuModuleUnload(module));
		takes("unloaded", 0);
		saw("%s charges an array of %zu MiB until the module is unloaded", way->name,
		    ARRAY / MIB);
	}
}

static void modules_beyond(const struct way *way)
{
	char *text = module_text(ARRAY, NULL);
	CUdeviceptr pointer;

	begin();
	pointer = fill_but(ARRAY - 32 * MIB);
	for (const struct way *w = way; w->name; w++) {
		CUmodule module = NULL;
		CUresult result;

		if (!driver_symbol(w->name))
			continue;
		result = w->load(&module, text);
		if (w->load != by_fat_binary || result == CUDA_SUCCESS)
			expect(w->name, result, CUDA_ERROR_OUT_OF_MEMORY);
		takes("undone", 0);
	}
	give_room(pointer);
	takes("freed", 0);
	for (const struct way *w = way; w->name; w++) {
		CUmodule module = NULL;

		if (driver_symbol(w->name) && w->load != by_fat_binary) {
			expect(w->name, w->load(&module, text), CUDA_SUCCESS);
			OK(cuModuleUnload(module));
		}
	}
	takes("at the end", 0);
	saw("an array of %zu MiB is refused with 32 less free, and loaded later", ARRAY / MIB);
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

/* Many that are small each, as programs that compile at run time have. */
static void many_within(void)
{
	static CUmodule modules[64];
	char *text = module_text(3 * MIB, NULL);

	begin();
	for (unsigned i = 0; i < 64; i++)
		modules[i] = load(text);
	takes("64 arrays of 3 MiB", 256 * (long long)MIB);
	for (unsigned i = 0; i < 64; i++)
		OK(cuModuleUnload(modules[i]));
	takes("unloaded", 0);
	saw("64 arrays of 3 MiB charge 4 each");
}

static void many_beyond(void)
{
	char *text = module_text(64 * MIB, NULL);
	CUmodule modules[128] = {NULL};
	size_t room, count = 0;
	CUresult result = CUDA_SUCCESS;

	begin();
	room = part(0.5);
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
	saw("%zu arrays of 64 MiB fit %zu MiB, the next one is refused", count, room / MIB);
}

/* --- libraries --- */

/* A handle alone takes nothing. */
static CUkernel kernel_of(CUlibrary library, const char *name)
{
	size_t before = left();
	CUkernel kernel = NULL;

	OK(OPTIONAL(cuLibraryGetKernel)(&kernel, library, name));
	if (left() + SLACK < before)
		failed("a kernel's handle charges %zu bytes", before - left());
	return kernel;
}

/* What makes a library that was loaded lazily take its arrays. */
static CUresult use_function(CUlibrary library)
{
	CUfunction function = NULL;

	return OPTIONAL(cuKernelGetFunction)(&function, kernel_of(library, "empty"));
}

static CUresult use_global(CUlibrary library)
{
	CUdeviceptr array = 0;
	size_t bytes = 0;

	return OPTIONAL(cuLibraryGetGlobal)(&array, &bytes, library, "big");
}

static CUresult use_module(CUlibrary library)
{
	CUmodule module = NULL;

	return OPTIONAL(cuLibraryGetModule)(&module, library);
}

static CUresult use_launch(CUlibrary library)
{
	return launch((CUfunction)(void *)kernel_of(library, "usebig"));
}

static const struct {
	const char *name;
	CUresult (*use)(CUlibrary library);
} uses[] = {{"cuKernelGetFunction", use_function},
            {"cuLibraryGetGlobal", use_global},
            {"cuLibraryGetModule", use_module},
            {"a launch by a kernel's handle", use_launch}};

#define USES (sizeof(uses) / sizeof(*uses))

static bool no_libraries(void)
{
	if (driver_symbol("cuLibraryLoadData"))
		return false;
	saw("this driver has no libraries");
	return true;
}

static void lazy_within(void)
{
	char *text = module_text(ARRAY, NULL);

	begin();
	if (no_libraries())
		return;
	for (size_t i = 0; i < USES; i++) {
		CUlibrary library = library_of(text);

		takes("loaded lazily", 0);
		expect(uses[i].name, uses[i].use(library), CUDA_SUCCESS);
		takes(uses[i].name, (long long)ARRAY);
		OK(OPTIONAL(cuLibraryUnload)(library));
		takes("unloaded", 0);
	}
	saw("an array of %zu MiB is charged at the first use of its library, until it is unloaded",
	    ARRAY / MIB);
}

/* The library is loaded, and none of its kernels has run: `usebig` would have set a byte. */
static void never_ran(CUlibrary library)
{
	CUdeviceptr array = 0;
	unsigned char byte = 0;
	size_t bytes = 0;

	OK(OPTIONAL(cuLibraryGetGlobal)(&array, &bytes, library, "big"));
	OK(cuMemcpyDtoH_v2(&byte, array, 1));
	if (byte)
		failed("a launch that was refused has run");
}

/*
 * What comes with a first use cannot be undone: the use fails, and what it took is charged, beyond
 * the quota, until the library is unloaded. Meanwhile no other library gets as far as the driver.
 */
static void lazy_over(CUresult (*use)(CUlibrary library), const char *name, const char *text)
{
	CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);
	CUlibrary library = library_of(text), other = library_of(text);
	size_t held = 0, then = 0;

	OUT_OF_MEMORY(name, use(library));
	if (left())
		failed("%s: %zu bytes are free", name, left());
	if (truth(&held) && held > quota() + ARRAY)
		failed("%s: %zu bytes are held", name, held);
	for (size_t i = 0; i < USES; i++)
		OUT_OF_MEMORY("another library", uses[i].use(other));
	if (truth(&then) && then > held + SLACK)
		failed("another library: %zu bytes are held, and %zu were", then, held);
	never_ran(library);
	give_room(pointer);
	takes(name, (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(other));
	takes("the other one unloaded", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	takes("unloaded", 0);
}

static void lazy_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library;

	begin();
	if (no_libraries())
		return;
	for (size_t i = 0; i < USES; i++)
		lazy_over(uses[i].use, uses[i].name, text);
	library = library_of(text);
	OK(use_global(library));
	OK(OPTIONAL(cuLibraryUnload)(library));
	takes("at the end", 0);
	saw("%zu MiB are refused at the first use of their library with 32 less free, and charged"
	    " until it is unloaded",
	    ARRAY / MIB);
}

/* A context beside the first one, and what it costs. */
static CUcontext another(long long *cost)
{
	size_t before = left();
	CUcontext context = NULL;

	OK(cuCtxCreate_v2(&context, 0, 0));
	*cost = (long long)before - (long long)left();
	return context;
}

static CUresult use_in(CUcontext context, CUresult (*use)(CUlibrary library), CUlibrary library)
{
	OK(cuCtxSetCurrent(context));
	return use(library);
}

/* Every context loads a library for itself, when it is first used there. */
static void contexts_within(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library;
	CUcontext second;
	long long cost;

	begin();
	if (no_libraries())
		return;
	second = another(&cost);
	for (size_t i = 0; i < USES; i++) {
		library = library_of(text);
		for (int again = 0; again < 2; again++) {
			OK(use_in(own_context, uses[i].use, library));
			takes(uses[i].name, cost + (again ? 2 : 1) * (long long)ARRAY);
			OK(use_in(second, use_launch, library));
			takes("launched in the second context", cost + 2 * (long long)ARRAY);
		}
		OK(OPTIONAL(cuLibraryUnload)(library));
		takes("unloaded", cost);
	}
	/* One that was used in each, and then in a younger one. */
	library = library_of(text);
	OK(use_in(own_context, use_launch, library));
	OK(use_in(second, use_launch, library));
	OK(cuCtxDestroy_v2(second));
	OK(use_in(own_context, use_launch, library));
	takes("the second context destroyed", (long long)ARRAY);
	second = another(&cost);
	OK(use_in(own_context, use_launch, library));
	takes("another context", cost + (long long)ARRAY);
	OK(use_in(second, use_launch, library));
	takes("launched there", cost + 2 * (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	takes("at the end", 0);
	saw("an array of %zu MiB is charged at the first launch in each of two contexts",
	    ARRAY / MIB);
}

static void contexts_beyond(void)
{
	CUdeviceptr pointer;
	CUlibrary library;
	CUcontext second;
	long long cost;

	begin();
	if (no_libraries())
		return;
	second = another(&cost);
	library = library_of(module_text(ARRAY, NULL));
	OK(use_in(own_context, use_launch, library));
	pointer = fill_but(ARRAY - 32 * MIB);
	OUT_OF_MEMORY("the second context's", use_in(second, use_launch, library));
	if (left())
		failed("%zu bytes are free", left());
	OK(use_in(own_context, use_launch, library));
	give_room(pointer);
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	takes("at the end", 0);
	saw("%zu MiB are refused at the first launch in a second context with 32 less free",
	    ARRAY / MIB);
}

/* A launch of the library's kernel that uses its array, recorded. */
static CUgraph capture_use(CUstream stream, CUlibrary library)
{
	CUgraph graph = NULL;
	uint64_t none = 0;
	void *parameters[] = {&none};

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel((CUfunction)(void *)kernel_of(library, "usebig"), 1, 1, 1, 1, 1, 1, 0,
	                  stream, parameters, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	return graph;
}

/* A launch that is only recorded cannot be watched: what the driver loads for it is charged with
 * the next request. */
static void captured_within(void)
{
	CUgraphExec executable = NULL;
	CUstream stream = NULL;
	CUdeviceptr pointer = 0;
	CUlibrary library;
	CUgraph graph;

	begin();
	if (no_libraries())
		return;
	OK(cuStreamCreate(&stream, 1));
	library = library_of(module_text(ARRAY, NULL));
	graph = capture_use(stream, library);
	OK(cuMemAlloc_v2(&pointer, 2 * MIB));
	OK(cuMemFree_v2(pointer));
	if (simulated())
		takes("captured", (long long)ARRAY);
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(cuGraphLaunch(executable, stream));
	OK(cuCtxSynchronize());
	agrees_late("launched as a graph", SLACK);
	OK(use_launch(library));
	takes("launched by its handle", (long long)ARRAY);
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(cuStreamDestroy_v2(stream));
	takes("unloaded", 0);
	saw("an array of %zu MiB is charged after its kernel's launch was captured", ARRAY / MIB);
}

static void captured_beyond(void)
{
	CUstream stream = NULL;
	CUdeviceptr pointer, more = 0;
	CUlibrary library;
	CUgraph graph;

	begin();
	if (no_libraries())
		return;
	OK(cuStreamCreate(&stream, 1));
	library = library_of(module_text(ARRAY, NULL));
	pointer = fill_but(ARRAY - 32 * MIB);
	graph = capture_use(stream, library);
	if (simulated())
		OUT_OF_MEMORY("what is asked for next", cuMemAlloc_v2(&more, 64 * MIB));
	OK(cuGraphDestroy(graph));
	OK(OPTIONAL(cuLibraryUnload)(library));
	give_room(pointer);
	OK(cuStreamDestroy_v2(stream));
	takes("at the end", 0);
	saw("a capture is not refused, but what is asked for next");
}

/* What a library does not have: these are an H100's answers, for which it loads nothing. */
static CUresult seek_managed(CUlibrary library)
{
	CUdeviceptr pointer = 0;
	size_t bytes = 0;

	return OPTIONAL(cuLibraryGetManaged)(&pointer, &bytes, library, "none");
}

static CUresult seek_function(CUlibrary library)
{
	void *function = NULL;

	return OPTIONAL(cuLibraryGetUnifiedFunction)(&function, library, "none");
}

static const struct {
	const char *name;
	CUresult (*seek)(CUlibrary library);
	CUresult answer;
} seeks[] = {{"cuLibraryGetManaged", seek_managed, CUDA_ERROR_NOT_FOUND},
             {"cuLibraryGetUnifiedFunction", seek_function, CUDA_ERROR_INVALID_VALUE}};

#define SEEKS (sizeof(seeks) / sizeof(*seeks))

static void absent_within(void)
{
	char *text = module_text(ARRAY, NULL);

	begin();
	if (no_libraries())
		return;
	for (size_t i = 0; i < SEEKS; i++) {
		CUlibrary library;

		if (!driver_symbol(seeks[i].name))
			continue;
		library = library_of(text);
		expect(seeks[i].name, seeks[i].seek(library), seeks[i].answer);
		takes(seeks[i].name, 0);
		OK(use_global(library));
		takes("used", (long long)ARRAY);
		OK(OPTIONAL(cuLibraryUnload)(library));
		takes("unloaded", 0);
	}
	saw("a library that was searched in vain is charged at its first use");
}

/* With nothing left, the driver is not asked whether it is there. */
static void absent_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library, other;
	CUdeviceptr pointer;

	begin();
	if (no_libraries())
		return;
	pointer = fill_but(ARRAY - 32 * MIB);
	library = library_of(text);
	other = library_of(text);
	OUT_OF_MEMORY("a library beyond the quota", use_global(library));
	for (size_t i = 0; i < SEEKS; i++)
		if (driver_symbol(seeks[i].name))
			OUT_OF_MEMORY(seeks[i].name, seeks[i].seek(other));
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(OPTIONAL(cuLibraryUnload)(other));
	give_room(pointer);
	takes("at the end", 0);
	saw("with nothing left no library is searched");
}

/* All code is loaded at once where the environment says so before the driver starts. */
static void begin_eager(void)
{
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	begin();
}

static void eager_within(void)
{
	char *text = module_text(ARRAY, NULL), path[] = "/tmp/library-XXXXXX";
	int file = mkstemp(path);
	CUlibrary library = NULL;

	if (write(file, text, strlen(text)) != (ssize_t)strlen(text))
		failed("no library in %s", path);
	close(file);
	begin_eager();
	if (no_libraries()) {
		unlink(path);
		return;
	}
	library = library_of(text);
	takes("loaded eagerly", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	takes("unloaded", 0);
	OK(OPTIONAL(cuLibraryLoadFromFile)(&library, path, NULL, NULL, 0, NULL, NULL, 0));
	takes("loaded from a file", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	takes("that unloaded", 0);
	unlink(path);
	saw("an array of %zu MiB is charged when its library is loaded", ARRAY / MIB);
}

static void eager_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library = NULL;
	CUdeviceptr pointer;

	begin_eager();
	if (no_libraries())
		return;
	pointer = fill_but(ARRAY - 32 * MIB);
	OUT_OF_MEMORY("an eager load",
	              OPTIONAL(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
	takes("undone", 0);
	give_room(pointer);
	OK(OPTIONAL(cuLibraryUnload)(library_of(text)));
	takes("at the end", 0);
	saw("an array of %zu MiB is refused with 32 less free, and loaded later", ARRAY / MIB);
}

/* --- printf --- */

/* What the driver takes for it is its own affair: what counts is that it is charged. */
static void print_within(void)
{
	CUfunction function = NULL;
	CUmodule module;

	begin();
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 512 * MIB));
	agrees("a buffer of 512 MiB for printf", SLACK);
	module = load(printing_module_text());
	agrees("a module that prints", SLACK);
	OK(cuModuleGetFunction(&function, module, "prints"));
	OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	OK(cuCtxSynchronize());
	agrees("launched", SLACK);
	OK(cuModuleUnload(module));
	saw("what a buffer for printf takes is charged when it is taken");
}

static void print_beyond(void)
{
	CUmodule module = NULL;
	CUresult result;
	CUdeviceptr pointer;

	begin();
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
	saw("with 4 MiB free it is %s",
	    result == CUDA_SUCCESS ? "granted: it takes less" : "refused");
}

const struct row module_rows[] = {
    {"code-module", "cuModuleLoadData cuModuleLoadDataEx cuModuleUnload", data_within, data_beyond},
    {"code-file", "cuModuleLoad cuModuleLoadFatBinary cuModuleUnload", file_within, file_beyond},
    {"code-linked", "cuModuleLoadData cuModuleUnload", link_within, link_beyond},
    {"code-many", "cuModuleLoadData cuModuleUnload", many_within, many_beyond},
    {"code-lazy",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetGlobal cuLibraryGetModule cuKernelGetFunction "
     "cuLibraryGetKernel cuLaunchKernel",
     lazy_within, lazy_beyond},
    {"code-contexts",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetGlobal cuLibraryGetModule cuKernelGetFunction "
     "cuLaunchKernel cuCtxCreate_v2 cuCtxDestroy_v2",
     contexts_within, contexts_beyond},
    {"code-captured",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetKernel cuLaunchKernel cuGraphLaunch "
     "cuGraphInstantiateWithFlags",
     captured_within, captured_beyond},
    {"code-absent", "cuLibraryGetManaged cuLibraryGetUnifiedFunction", absent_within,
     absent_beyond},
    {"code-eager", "cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload", eager_within,
     eager_beyond},
    {"code-printf", "cuCtxSetLimit cuModuleLoadData", print_within, print_beyond},
    {0}};
