/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: their results, and the errors for wrong launches, texts and addresses. After a fault a
 * context is unusable, so each such case has a process of its own. */
#include "code.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* An address where no process has memory unless the driver maps it. A kernel might be able to write
 * to 1 TiB. */
#define UNKNOWN ((CUdeviceptr)64 * 1024)

#define BEGIN(name) ".visible .entry " name "(.param .u64 p, .param .u32 n)\n{\n"
#define REGISTERS                                                                                  \
	" .reg .pred %p<4>;\n .reg .b32 %r<16>;\n .reg .b64 %rd<8>;\n .reg .f32 %f<4>;\n"          \
	" .reg .f64 %fd<4>;\n"
/* %rd1: the buffer, %r1: n, %r2: this thread; those from n on end. */
#define THREAD                                                                                     \
	" ld.param.u64 %rd1, [p];\n ld.param.u32 %r1, [n];\n cvta.to.global.u64 %rd1, %rd1;\n"     \
	" mov.u32 %r3, %ctaid.x;\n mov.u32 %r4, %ntid.x;\n mov.u32 %r5, %tid.x;\n"                 \
	" mad.lo.s32 %r2, %r3, %r4, %r5;\n setp.ge.u32 %p1, %r2, %r1;\n @%p1 bra END;\n"
/* %rd2: its element of 4 bytes */
#define ELEMENT " mul.wide.u32 %rd2, %r2, 4;\n add.s64 %rd2, %rd1, %rd2;\n"
#define END "END:\n ret;\n}\n"

/* clang-format off */
static const char computing[] = PTX_HEADER
	".global .align 4 .b32 table[4] = {5, 6, 7, 8};\n"
	BEGIN("scale") REGISTERS THREAD ELEMENT
	" ld.global.u32 %r6, [%rd2];\n mul.lo.u32 %r6, %r6, 2;\n st.global.u32 [%rd2], %r6;\n" END
	BEGIN("bias") REGISTERS THREAD ELEMENT
	" ld.global.u32 %r6, [%rd2];\n add.u32 %r6, %r6, 10;\n st.global.u32 [%rd2], %r6;\n" END
	BEGIN("lookup") REGISTERS THREAD ELEMENT
	" and.b32 %r6, %r2, 3;\n mul.wide.u32 %rd3, %r6, 4;\n mov.u64 %rd4, table;\n"
	" add.s64 %rd4, %rd4, %rd3;\n ld.global.u32 %r7, [%rd4];\n st.global.u32 [%rd2], %r7;\n" END
	BEGIN("floats") REGISTERS THREAD ELEMENT
	" cvt.rn.f32.u32 %f1, %r2;\n fma.rn.f32 %f1, %f1, 0f3FC00000, 0f3E800000;\n"
	" cvt.f64.f32 %fd1, %f1;\n mul.f64 %fd1, %fd1, 0d4024000000000000;\n"
	" cvt.rzi.s32.f64 %r6, %fd1;\n st.global.u32 [%rd2], %r6;\n" END
	BEGIN("integers") REGISTERS THREAD ELEMENT
	" sub.s32 %r6, 3, %r2;\n shl.b32 %r7, %r6, 4;\n shr.s32 %r7, %r7, 2;\n div.s32 %r8, %r7, 3;\n"
	" rem.s32 %r9, %r7, 3;\n min.s32 %r10, %r8, %r9;\n setp.lt.s32 %p2, %r6, 0;\n"
	" selp.b32 %r11, %r10, %r8, %p2;\n mul.hi.u32 %r12, %r11, 65536;\n xor.b32 %r13, %r11, %r12;\n"
	" st.global.u32 [%rd2], %r13;\n" END
	/* Reversed, through shared memory, in one block. */
	BEGIN("reverse") " .shared .align 4 .b8 held[4096];\n" REGISTERS
	" ld.param.u64 %rd1, [p];\n mov.u32 %r2, %tid.x;\n mov.u32 %r4, %ntid.x;\n" ELEMENT
	" mov.u32 %r6, held;\n shl.b32 %r7, %r2, 2;\n add.u32 %r7, %r6, %r7;\n"
	" ld.global.u32 %r8, [%rd2];\n st.shared.u32 [%r7], %r8;\n bar.sync 0;\n"
	" sub.u32 %r9, %r4, 1;\n sub.u32 %r9, %r9, %r2;\n shl.b32 %r9, %r9, 2;\n"
	" add.u32 %r9, %r6, %r9;\n ld.shared.u32 %r8, [%r9];\n st.global.u32 [%rd2], %r8;\n" END;
static const char others[] =
	BEGIN("total") REGISTERS THREAD " red.global.add.u32 [%rd1], %r2;\n" END
	BEGIN("write") REGISTERS " ld.param.u64 %rd1, [p];\n st.global.u32 [%rd1], 1;\n" END
	BEGIN("traps") REGISTERS " trap;\n" END
	/* Runs until the host sets the buffer, which it never does. */
	BEGIN("endless") REGISTERS " ld.param.u64 %rd1, [p];\nAGAIN:\n ld.volatile.global.u32 %r6, [%rd1];\n"
	" setp.eq.u32 %p1, %r6, 0;\n @%p1 bra AGAIN;\n" END;
/* clang-format on */

static bool shows_logs;
static char kernels[8192];
static CUmodule module;
static CUdeviceptr buffer;

static CUfunction kernel(const char *name)
{
	CUfunction function;

	MUST(cuModuleGetFunction(&function, module, name));
	return function;
}

static void begin(void)
{
	start_with_context();
	snprintf(kernels, sizeof(kernels), "%s%s", computing, others);
	MUST(cuModuleLoadData(&module, kernels));
	MUST(cuMemAlloc_v2(&buffer, MiB));
	MUST(cuMemsetD8_v2(buffer, 0, MiB));
}

static CUresult run(const char *name, CUdeviceptr at, unsigned grid, unsigned block, uint32_t n)
{
	void *parameters[] = {&at, &n};

	return cuLaunchKernel(kernel(name), grid, 1, 1, block, 1, 1, 0, NULL, parameters, NULL);
}

static void say_numbers(const char *key, CUresult result, const int *numbers, size_t count)
{
	printf("%s: %s", key, name_of(result));
	for (size_t i = 0; i < count; i++)
		printf(" %d", numbers[i]);
	printf("\n");
}

static void compute(const char *name, unsigned grid, unsigned block, uint32_t n, size_t shown)
{
	int numbers[256];
	CUresult result;

	for (int i = 0; i < 256; i++)
		numbers[i] = i;
	MUST(cuMemcpyHtoD_v2(buffer, numbers, sizeof(numbers)));
	result = run(name, buffer, grid, block, n);
	MUST(cuMemcpyDtoH_v2(numbers, buffer, sizeof(numbers)));
	say_numbers(name, result, numbers, shown);
}

static void recipe(void)
{
	int numbers[101];

	for (int i = 0; i < 101; i++)
		numbers[i] = i;
	MUST(cuMemcpyHtoD_v2(buffer, numbers, sizeof(numbers)));
	MUST(run("scale", buffer, 2, 64, 101));
	MUST(run("bias", buffer, 2, 64, 101));
	MUST(cuCtxSynchronize());
	MUST(cuMemcpyDtoH_v2(numbers, buffer, sizeof(numbers)));
	printf("recipe: %d %d %d\n", numbers[0], numbers[1], numbers[100]);
}

static void results(void)
{
	begin();
	recipe();
	compute("scale", 2, 4, 6, 8);
	compute("lookup", 1, 8, 8, 8);
	compute("floats", 1, 8, 8, 8);
	compute("integers", 1, 8, 8, 8);
	compute("reverse", 1, 64, 64, 4);
	compute("total", 3, 100, 256, 2);
}

static void shape(const char *key, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared)
{
	uint32_t n = 0;
	void *parameters[] = {&buffer, &n};
	CUresult result =
	    cuLaunchKernel(kernel("bias"), gx, gy, gz, bx, by, bz, shared, NULL, parameters, NULL);

	printf("%s: %s, then %s\n", key, name_of(result), name_of(cuCtxSynchronize()));
}

static void launches(void)
{
	struct {
		CUdeviceptr at;
		uint32_t n;
	} all;
	size_t size = 12;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
	                 CU_LAUNCH_PARAM_END};
	CUfunction function;
	int value = 1;

	begin();
	shape("shape.1024_threads", 1, 1, 1, 1024, 1, 1, 0);
	shape("shape.1025_threads", 1, 1, 1, 1025, 1, 1, 0);
	shape("shape.64x32_threads", 1, 1, 1, 64, 32, 1, 0);
	shape("shape.65_deep", 1, 1, 1, 1, 1, 65, 0);
	shape("shape.no_thread", 1, 1, 1, 0, 1, 1, 0);
	shape("shape.no_block", 0, 1, 1, 1, 1, 1, 0);
	shape("shape.65536_rows", 1, 65536, 1, 1, 1, 1, 0);
	shape("shape.1MiB_shared", 1, 1, 1, 1, 1, 1, MiB);
	say_result("function.unknown", cuModuleGetFunction(&function, module, "nothing"));
	all.at = buffer;
	all.n = 1;
	MUST(cuMemcpyHtoD_v2(buffer, &value, sizeof(value)));
	say_result("extra", cuLaunchKernel(kernel("bias"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	MUST(cuMemcpyDtoH_v2(&value, buffer, sizeof(value)));
	printf("extra.value: %d\n", value);
}

static void described(void)
{
	CUfunction bias;
	int bytes = -1;

	begin();
	bias = kernel("bias");
	for (size_t i = 0; i < 3; i++) {
		size_t offset = 0, size = 0;
		CUresult result = cuFuncGetParamInfo(bias, i, &offset, &size);

		printf("parameter.%zu: %s, at %zu, %zu bytes\n", i, name_of(result), offset, size);
	}
	MUST(cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel("reverse")));
	printf("shared_bytes: %d\n", bytes);
}

/* The program's memory, registered with the card: a kernel adds to its contents. */
static void registered(void)
{
	size_t size = 64 * KiB;
	int *memory = aligned_alloc(4 * KiB, size);

	begin();
	if (!memory)
		stop("no memory");
	memset(memory, 0, size);
	say_result("register", cuMemHostRegister_v2(memory, size, 1));
	say_result("register.again", cuMemHostRegister_v2(memory, size, 1));
	say_result("register.nothing", cuMemHostRegister_v2((char *)memory + size, 0, 1));
	say_result("register.launch", run("bias", (uintptr_t)memory, 1, 4, 3));
	say_result("register.wait", cuCtxSynchronize());
	printf("register.values: %d %d %d %d\n", memory[0], memory[1], memory[2], memory[3]);
	say_result("register.free", cuMemFreeHost(memory));
	say_result("unregister", cuMemHostUnregister(memory));
	say_result("unregister.again", cuMemHostUnregister(memory));
}

static void few_parameters(void)
{
	struct {
		CUdeviceptr at;
		uint32_t n;
	} all = {0};
	size_t size = 8;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
	                 CU_LAUNCH_PARAM_END};

	begin();
	say_result("extra.short",
	           cuLaunchKernel(kernel("bias"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	say_result("no_parameters",
	           cuLaunchKernel(kernel("bias"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

/* The result, and whether there is a log. */
static void text(const char *key, const char *ptx)
{
	static char log[4096];
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)sizeof(log)};
	CUresult result;

	memset(log, 0, sizeof(log));
	result = cuModuleLoadDataEx(&module, ptx, COUNT(options), options, values);
	printf("%s: %s, log %d, its size %d\n", key, name_of(result), log[0] != 0,
	       values[1] == (void *)strlen(log) || values[1] == (void *)(strlen(log) + 1));
	if (shows_logs)
		printf("%s", log);
	if (result == CUDA_SUCCESS)
		MUST(cuModuleUnload(module));
}

static void texts(void)
{
	start_with_context();
	text("text.right", PTX_HEADER PTX_EMPTY);
	text("text.empty", "");
	text("text.garbage", "this is no code");
	text("text.no_version", ".target sm_70\n.address_size 64\n" PTX_EMPTY);
	text("text.header", PTX_HEADER "this is no code");
	text("text.cut_off", PTX_HEADER ".visible .entry cut()\n{\n ret;\n");
	text("text.instruction",
	     PTX_HEADER ".visible .entry e()\n{\n frobnicate.u32 1;\n ret;\n}\n");
	text("text.operands", PTX_HEADER
	     ".visible .entry e()\n{\n .reg .b32 %r<2>;\n add.u32 %r1, %r1;\n ret;\n}\n");
	text("text.register", PTX_HEADER ".visible .entry e()\n{\n mov.u32 %r1, 1;\n ret;\n}\n");
	text("text.label", PTX_HEADER ".visible .entry e()\n{\n bra NOWHERE;\n ret;\n}\n");
	text("text.later_version", ".version 99.0\n.target sm_70\n.address_size 64\n" PTX_EMPTY);
	text("text.later_target", ".version 7.0\n.target sm_999\n.address_size 64\n" PTX_EMPTY);
	text("text.next_card", ".version 8.6\n.target sm_100\n.address_size 64\n" PTX_EMPTY);
}

/* A faulty kernel: which calls return its error, and what still works. */
static void fault(const char *key, const char *name, CUdeviceptr at)
{
	uint32_t n = 1;
	void *parameters[] = {&buffer, &n};
	CUfunction right = kernel("write");
	CUdeviceptr pointer;
	int value;

	printf("%s: launch %s", key, name_of(run(name, at, 1, 1, 1)));
	printf(", wait %s", name_of(cuCtxSynchronize()));
	printf(", again %s", name_of(cuCtxSynchronize()));
	printf(", launch %s",
	       name_of(cuLaunchKernel(right, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)));
	printf(", read %s", name_of(cuMemcpyDtoH_v2(&value, buffer, sizeof(value))));
	printf(", alloc %s", name_of(cuMemAlloc_v2(&pointer, MiB)));
	printf(", free %s\n", name_of(cuMemFree_v2(buffer)));
}

static void illegal(void)
{
	begin();
	fault("fault.unknown", "write", UNKNOWN);
}

static void null(void)
{
	begin();
	fault("fault.null", "write", 0);
}

static void misaligned(void)
{
	begin();
	fault("fault.misaligned", "write", buffer + 1);
}

static void trapped(void)
{
	begin();
	fault("fault.trap", "traps", buffer);
}

/* A new context does not help this process. */
static void reset(void)
{
	CUcontext context;

	begin();
	MUST(run("write", UNKNOWN, 1, 1, 1));
	say_result("reset.fault", cuCtxSynchronize());
	say_result("reset", cuDevicePrimaryCtxReset_v2(0));
	say_result("reset.retain", cuDevicePrimaryCtxRetain(&context, 0));
}

static void endless(void)
{
	CUdeviceptr pointer;
	CUstream stream, other;
	uint32_t n = 1;
	void *parameters[] = {&buffer, &n};

	begin();
	MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	say_result("endless", cuLaunchKernel(kernel("endless"), 1, 1, 1, 1, 1, 1, 0, stream,
	                                     parameters, NULL));
	say_result("endless.alloc", cuMemAlloc_v2(&pointer, MiB));
	say_result("endless.other", cuStreamSynchronize(other));
	alarm(2);
	cuStreamSynchronize(stream);
	printf("endless.wait: it ended\n");
}

static void say_end(int status)
{
	if (WIFSIGNALED(status))
		printf("ended by: %s\n", WTERMSIG(status) == SIGALRM ? "alarm" : "another signal");
	else if (WEXITSTATUS(status))
		printf("ended with: %d\n", WEXITSTATUS(status));
}

/* With any argument it also prints the logs, which differ between drivers. */
int main(int count, char **arguments)
{
	static void (*const cases[])(void) = {results,        launches, described, registered,
	                                      few_parameters, texts,    illegal,   null,
	                                      misaligned,     trapped,  reset,     endless};

	(void)arguments;
	shows_logs = count > 1;
	for (size_t i = 0; i < COUNT(cases); i++) {
		int status;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == -1)
			stop("fork failed");
		if (pid == 0) {
			cases[i]();
			fflush(stdout);
			_exit(0);
		}
		if (waitpid(pid, &status, 0) != pid)
			stop("waitpid failed");
		say_end(status);
	}
	return 0;
}
