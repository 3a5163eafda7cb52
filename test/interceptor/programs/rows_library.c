/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for libraries, at their load or their first use. A load that does not fit is undone. */
#include "rows_code.h"

#include <string.h>
#include <unistd.h>

#define ARRAY (256 * MIB)

static CUkernel kernel_of(CUlibrary library, const char *name)
{
	size_t before = left();
	CUkernel kernel = NULL;

	OK(OPTIONAL(cuLibraryGetKernel)(&kernel, library, name));
	if (left() + SLACK < before)
		failed("a kernel's handle charges %zu bytes", before - left());
	return kernel;
}

/* Makes a lazily loaded library allocate its arrays. */
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
	report("this driver has no libraries");
	return true;
}

static void lazy_within(void)
{
	char *text = module_text(ARRAY, NULL);

	for (size_t i = 0; i < USES; i++) {
		CUlibrary library = library_of(text);

		expect_charge("loaded lazily", 0);
		expect(uses[i].name, uses[i].use(library), CUDA_SUCCESS);
		expect_charge(uses[i].name, (long long)ARRAY);
		OK(OPTIONAL(cuLibraryUnload)(library));
		expect_charge("unloaded", 0);
	}
	report(
	    "an array of %zu MiB is charged at the first use of its library, until it is unloaded",
	    ARRAY / MIB);
}

/* No kernel of the library has run: `usebig` would have set a byte. */
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
 * The memory of a first use cannot be freed: the use fails, and it stays charged, beyond the quota,
 * until the library is unloaded. Until then other libraries are refused before the driver is
 * called.
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
	expect_charge(name, (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(other));
	expect_charge("the other one unloaded", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	expect_charge("unloaded", 0);
}

static void lazy_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library;

	for (size_t i = 0; i < USES; i++)
		lazy_over(uses[i].use, uses[i].name, text);
	library = library_of(text);
	OK(use_global(library));
	OK(OPTIONAL(cuLibraryUnload)(library));
	expect_charge("at the end", 0);
	report(
	    "%zu MiB are refused at the first use of their library with 32 less free, and charged"
	    " until it is unloaded",
	    ARRAY / MIB);
}

static CUresult use_managed(CUlibrary library)
{
	CUdeviceptr pointer = 0;
	size_t bytes = 0;

	return OPTIONAL(cuLibraryGetManaged)(&pointer, &bytes, library, "big");
}

static CUresult (*const managed_uses[])(CUlibrary library) = {use_managed, use_function,
                                                              use_module};
#define MANAGED_USES (sizeof(managed_uses) / sizeof(*managed_uses))

static void managed_within(void)
{
	char *text = managed_text(ARRAY);

	for (size_t i = 0; i < MANAGED_USES; i++) {
		CUlibrary library = library_of(text);

		expect_charge("loaded lazily", 0);
		OK(managed_uses[i](library));
		expect_charge("used", (long long)ARRAY);
		OK(use_managed(library));
		expect_charge("asked for", (long long)ARRAY);
		OK(OPTIONAL(cuLibraryUnload)(library));
		expect_charge("unloaded", 0);
	}
	report("a managed variable of %zu MiB is charged from the first use of its library on",
	       ARRAY / MIB);
}

static void managed_beyond(void)
{
	char *text = managed_text(ARRAY);

	for (size_t i = 0; i < MANAGED_USES; i++) {
		CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);
		CUlibrary library = library_of(text);

		OUT_OF_MEMORY("a managed variable", managed_uses[i](library));
		if (left())
			failed("%zu bytes are free", left());
		give_room(pointer);
		OK(OPTIONAL(cuLibraryUnload)(library));
		expect_charge("unloaded", 0);
	}
	report(
	    "a managed variable of %zu MiB is refused at the first use of its library, and charged"
	    " until it is unloaded",
	    ARRAY / MIB);
}

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

/* Each context loads a library at its first use there. */
static void contexts_within(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library;
	long long cost;
	CUcontext second = another(&cost);

	for (size_t i = 0; i < USES; i++) {
		library = library_of(text);
		for (int again = 0; again < 2; again++) {
			OK(use_in(own_context, uses[i].use, library));
			expect_charge(uses[i].name, cost + (again ? 2 : 1) * (long long)ARRAY);
			OK(use_in(second, use_launch, library));
			expect_charge("launched in the second context",
			              cost + 2 * (long long)ARRAY);
		}
		OK(OPTIONAL(cuLibraryUnload)(library));
		expect_charge("unloaded", cost);
	}
	/* A library that was used in each, and then in a newer one. */
	library = library_of(text);
	OK(use_in(own_context, use_launch, library));
	OK(use_in(second, use_launch, library));
	OK(cuCtxDestroy_v2(second));
	OK(use_in(own_context, use_launch, library));
	expect_charge("the second context destroyed", (long long)ARRAY);
	second = another(&cost);
	OK(use_in(own_context, use_launch, library));
	expect_charge("another context", cost + (long long)ARRAY);
	OK(use_in(second, use_launch, library));
	expect_charge("launched there", cost + 2 * (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(cuCtxDestroy_v2(second));
	OK(cuCtxSetCurrent(own_context));
	expect_charge("at the end", 0);
	report("an array of %zu MiB is charged at the first launch in each of two contexts",
	       ARRAY / MIB);
}

static void contexts_beyond(void)
{
	CUdeviceptr pointer;
	long long cost;
	CUcontext second = another(&cost);
	CUlibrary library = library_of(module_text(ARRAY, NULL));

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
	expect_charge("at the end", 0);
	report("%zu MiB are refused at the first launch in a second context with 32 less free",
	       ARRAY / MIB);
}

static CUgraph capture_use(CUstream stream, CUlibrary library)
{
	CUgraph graph = NULL;

	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuLaunchKernel((CUfunction)(void *)kernel_of(library, "usebig"), 1, 1, 1, 1, 1, 1, 0,
	                  stream, parameters, NULL));
	OK(cuStreamEndCapture(stream, &graph));
	return graph;
}

/* A captured launch cannot be observed: its memory is charged with the next request. */
static void captured_within(void)
{
	CUgraphExec executable = NULL;
	CUstream stream = NULL;
	CUdeviceptr pointer = 0;
	CUlibrary library;
	CUgraph graph;

	OK(cuStreamCreate(&stream, 1));
	library = library_of(module_text(ARRAY, NULL));
	graph = capture_use(stream, library);
	OK(cuMemAlloc_v2(&pointer, MIB));
	expect_charge("captured, and a small allocation", (long long)ARRAY);
	OK(cuMemFree_v2(pointer));
	OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(cuGraphLaunch(executable, stream));
	OK(cuCtxSynchronize());
	agrees_late("launched as a graph", SLACK);
	OK(use_launch(library));
	expect_charge("launched by its handle", (long long)ARRAY);
	OK(cuGraphExecDestroy(executable));
	OK(cuGraphDestroy(graph));
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(cuStreamDestroy_v2(stream));
	expect_charge("unloaded", 0);
	report("an array of %zu MiB is charged after its kernel's launch was captured",
	       ARRAY / MIB);
}

static void captured_beyond(void)
{
	CUstream stream = NULL;
	CUdeviceptr pointer, more = 0;
	CUlibrary library;
	CUgraph graph;

	OK(cuStreamCreate(&stream, 1));
	library = library_of(module_text(ARRAY, NULL));
	pointer = fill_but(ARRAY - 32 * MIB);
	graph = capture_use(stream, library);
	OUT_OF_MEMORY("the next allocation", cuMemAlloc_v2(&more, 64 * MIB));
	OK(cuGraphDestroy(graph));
	OK(OPTIONAL(cuLibraryUnload)(library));
	give_room(pointer);
	OK(cuStreamDestroy_v2(stream));
	expect_charge("at the end", 0);
	report("a capture is not refused, but the next allocation");
}

/* Symbols that a library lacks: an H100 answers with these codes and loads nothing. */
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

	for (size_t i = 0; i < SEEKS; i++) {
		CUlibrary library;

		if (!driver_symbol(seeks[i].name))
			continue;
		library = library_of(text);
		expect(seeks[i].name, seeks[i].seek(library), seeks[i].answer);
		expect_charge(seeks[i].name, 0);
		OK(use_global(library));
		expect_charge("used", (long long)ARRAY);
		OK(OPTIONAL(cuLibraryUnload)(library));
		expect_charge("unloaded", 0);
	}
	report("a library that was searched in vain is charged at its first use");
}

/* With nothing left, the driver is not asked for the symbol. */
static void absent_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);
	CUlibrary library = library_of(text);
	CUlibrary other = library_of(text);

	OUT_OF_MEMORY("a library beyond the quota", use_global(library));
	for (size_t i = 0; i < SEEKS; i++)
		if (driver_symbol(seeks[i].name))
			OUT_OF_MEMORY(seeks[i].name, seeks[i].seek(other));
	OK(OPTIONAL(cuLibraryUnload)(library));
	OK(OPTIONAL(cuLibraryUnload)(other));
	give_room(pointer);
	expect_charge("at the end", 0);
	report("with nothing left no library is searched");
}

/* The environment requests eager loading before the driver starts. */
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
	library = library_of(text);
	expect_charge("loaded eagerly", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	expect_charge("unloaded", 0);
	OK(OPTIONAL(cuLibraryLoadFromFile)(&library, path, NULL, NULL, 0, NULL, NULL, 0));
	expect_charge("loaded from a file", (long long)ARRAY);
	OK(OPTIONAL(cuLibraryUnload)(library));
	expect_charge("that unloaded", 0);
	unlink(path);
	report("an array of %zu MiB is charged when its library is loaded", ARRAY / MIB);
}

static void eager_beyond(void)
{
	char *text = module_text(ARRAY, NULL);
	CUlibrary library = NULL;
	CUdeviceptr pointer = fill_but(ARRAY - 32 * MIB);

	OUT_OF_MEMORY("an eager load",
	              OPTIONAL(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
	expect_charge("undone", 0);
	give_room(pointer);
	OK(OPTIONAL(cuLibraryUnload)(library_of(text)));
	expect_charge("at the end", 0);
	report("an array of %zu MiB is refused with 32 less free, and loaded later", ARRAY / MIB);
}

const struct row library_rows[] = {
    {"code-lazy",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetGlobal cuLibraryGetModule cuKernelGetFunction "
     "cuLibraryGetKernel cuLaunchKernel",
     lazy_within, .beyond = lazy_beyond, .lacks = no_libraries},
    {"code-contexts",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetGlobal cuLibraryGetModule cuKernelGetFunction "
     "cuLaunchKernel cuCtxCreate_v2 cuCtxDestroy_v2",
     contexts_within, .beyond = contexts_beyond, .lacks = no_libraries},
    {"code-captured",
     "cuLibraryLoadData cuLibraryUnload cuLibraryGetKernel cuLaunchKernel cuGraphLaunch "
     "cuGraphInstantiateWithFlags",
     captured_within, .beyond = captured_beyond, .lacks = no_libraries},
    {"code-managed-lazy",
     "cuLibraryGetManaged cuKernelGetFunction cuLibraryGetModule cuLibraryUnload", managed_within,
     .beyond = managed_beyond, .lacks = no_libraries},
    {"code-absent", "cuLibraryGetManaged cuLibraryGetUnifiedFunction", absent_within,
     .beyond = absent_beyond, .lacks = no_libraries},
    {"code-eager", "cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload", eager_within,
     .beyond = eager_beyond, .begin = begin_eager, .lacks = no_libraries},
    {0}};
