/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a context: their values, and when the malloc heap and the printf FIFO take memory. */
#include "conformance.h"

enum { SYNC_DEPTH = 3, PENDING_LAUNCHES = 4, PERSISTING_L2 = 6, COUNT_OF_LIMITS = 12 };

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".extern .func (.param .b64 func_retval0) malloc (.param .b64 malloc_param_0);\n"
    ".extern .func free (.param .b64 free_param_0);\n"
    ".visible .entry kmalloc()\n{\n"
    " .reg .b64 %rd<3>;\n"
    " mov.u64 %rd1, 1024;\n"
    " {\n  .param .b64 param0;\n  st.param.b64 [param0+0], %rd1;\n  .param .b64 retval0;\n"
    "  call.uni (retval0), malloc, (param0);\n  ld.param.b64 %rd2, [retval0+0];\n }\n"
    " {\n  .param .b64 param0;\n  st.param.b64 [param0+0], %rd2;\n"
    "  call.uni free, (param0);\n }\n"
    " ret;\n}\n"
    ".visible .entry kempty()\n{\n ret;\n}\n";

/* A kernel that calls printf without output. */
static const char printing[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
    ".global .align 1 .b8 fmt[1] = {0};\n"
    ".visible .entry kprintf()\n{\n"
    " .reg .b64 %rd<4>;\n .reg .b32 %r<3>;\n"
    " mov.u64 %rd1, fmt;\n cvta.global.u64 %rd2, %rd1;\n mov.u64 %rd3, 0;\n"
    " {\n  .param .b64 p0;\n  st.param.b64 [p0], %rd2;\n"
    "  .param .b64 p1;\n  st.param.b64 [p1], %rd3;\n  .param .b32 rv;\n"
    "  call.uni (rv), vprintf, (p0, p1);\n  ld.param.b32 %r1, [rv];\n }\n"
    " ret;\n}\n";

static long long before;

static void say_held(const char *key)
{
	printf("%s: %lld\n", key, held() - before);
}

static void set(const char *key, int limit, size_t value)
{
	CUresult result = cuCtxSetLimit(limit, value);
	size_t now = 0;

	cuCtxGetLimit(&now, limit);
	printf("%s: %s, now %zu, held %lld\n", key, name_of(result), now, held() - before);
}

/* The largest possible limit may depend on the card and on its free memory. */
static void set_too_much(const char *key, size_t heap)
{
	CUresult result = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap);
	size_t now = 0;

	cuCtxGetLimit(&now, CU_LIMIT_MALLOC_HEAP_SIZE);
	printf("%s: %s, now some %d, less than asked %d, held %lld\n", key, name_of(result),
	       now > 0, now < heap, held() - before);
}

static void launch(CUfunction function)
{
	MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	MUST(cuCtxSynchronize());
}

/* In a fresh context: the FIFO's size is set before a module with printf is loaded. */
static void fifo(void)
{
	CUmodule module;
	CUfunction prints;

	set("fifo.512MiB", CU_LIMIT_PRINTF_FIFO_SIZE, 512 * MiB);
	MUST(cuModuleLoadData(&module, printing));
	say_held("fifo.loaded");
	MUST(cuModuleGetFunction(&prints, module, "kprintf"));
	say_held("fifo.looked_up");
	launch(prints);
	say_held("fifo.launched");
	set("fifo.pending_1Mi", PENDING_LAUNCHES, 1 << 20);
	set("fifo.persisting_20MiB", PERSISTING_L2, 20 * MiB);
	set("fifo.heap_256MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MiB);
	set("fifo.used", CU_LIMIT_PRINTF_FIFO_SIZE, 1024 * MiB);
	MUST(cuModuleUnload(module));
	say_held("fifo.unloaded");
}

/* The bytes that a heap takes beside its size. Each size has a context of its own. */
static void heaps(void)
{
	static const size_t sizes[] = {16, 64, 512, 2048, 8192};
	CUmodule module;
	CUfunction allocates;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		MUST(cuDevicePrimaryCtxReset_v2(0));
		MUST(cuDevicePrimaryCtxRetain(&(CUcontext){NULL}, 0));
		MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, sizes[i] * MiB));
		MUST(cuModuleLoadData(&module, ptx));
		MUST(cuModuleGetFunction(&allocates, module, "kmalloc"));
		before = held();
		launch(allocates);
		say_held(keyed("heap.%zuMiB", sizes[i]));
	}
}

int main(void)
{
	CUmodule module;
	CUfunction allocates, empty;

	start_with_context();
	before = held();
	for (int limit = 0; limit < COUNT_OF_LIMITS; limit++) {
		size_t value = 0;
		CUresult result = cuCtxGetLimit(&value, limit);

		printf("default.%d: %s, %zu\n", limit, name_of(result), value);
	}
	say_result("set.sync_depth", cuCtxSetLimit(SYNC_DEPTH, 4));
	say_result("set.unknown", cuCtxSetLimit(1000, 4));
	say_result("get.unknown", cuCtxGetLimit(&(size_t){0}, 1000));
	set("set.pending_launches", PENDING_LAUNCHES, 4096);
	set("set.fifo_64MiB", CU_LIMIT_PRINTF_FIFO_SIZE, 64 * MiB);
	set("set.heap_512MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 512 * MiB);
	set("set.heap_8MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MiB);
	set_too_much("set.heap_200GiB", 200 * GiB);
	set("set.heap_256MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MiB);

	MUST(cuModuleLoadData(&module, ptx));
	MUST(cuModuleGetFunction(&allocates, module, "kmalloc"));
	MUST(cuModuleGetFunction(&empty, module, "kempty"));
	/* Without the module's own memory. */
	launch(empty);
	before = held();
	launch(allocates);
	say_held("launched");
	launch(allocates);
	say_held("launched_twice");
	set("used.heap_512MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 512 * MiB);
	set("used.heap_16MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MiB);
	set("used.heap_256MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MiB);

	/* Does the next primary context start with the defaults? */
	MUST(cuDevicePrimaryCtxReset_v2(0));
	MUST(cuDevicePrimaryCtxRetain(&(CUcontext){NULL}, 0));
	before = held();
	set("reset.heap_64MiB", CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MiB);
	fifo();
	heaps();
	return 0;
}
