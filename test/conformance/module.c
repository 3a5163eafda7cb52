/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of code: what modules with arrays take, when, and when it is freed. The program runs
 * itself again with eager loading, which the driver reads once per process. */
#define _GNU_SOURCE
#include "code.h"

#define ARRAY (512 * MiB)

/* Keys of lines with eager loading begin with "eager.". */
static const char *mode = "";

static void say_key(const char *key)
{
	char text[96];

	snprintf(text, sizeof(text), "%s%s", mode, key);
	say_taken(text);
}

static void say_result_key(const char *key, CUresult result)
{
	printf("%s%s: %s\n", mode, key, name_of(result));
}

static void modules(void)
{
	CUmodule module;
	CUfunction function;
	CUdeviceptr address;
	size_t size;

	mark();
	MUST(cuModuleLoadData(&module, with_array(ARRAY)));
	say_key("module.loaded");
	MUST(cuModuleGetFunction(&function, module, "empty"));
	MUST(launch(function));
	say_key("module.launched");
	MUST(cuModuleGetFunction(&function, module, "usebig"));
	MUST(launch(function));
	say_key("module.launched_user");
	MUST(cuModuleGetGlobal_v2(&address, &size, module, "big"));
	printf("%smodule.array: %zu bytes\n", mode, size);
	say_result_key("module.array.free", cuMemFree_v2(address));
	say_result_key("module.no_function", cuModuleGetFunction(&function, module, "none"));
	say_result_key("module.no_array", cuModuleGetGlobal_v2(&address, &size, module, "none"));
	MUST(cuModuleUnload(module));
	say_key("module.unloaded");
	MUST(cuModuleLoadDataEx(&module, with_array(ARRAY), 0, NULL, NULL));
	say_key("module.loaded_ex");
	MUST(cuModuleUnload(module));
	say_key("module.unloaded_ex");
}

static void links(void *image)
{
	CUmodule module;

	MUST(cuModuleLoadData(&module, image));
	say_key("link.loaded");
	MUST(cuModuleUnload(module));
	say_key("link.unloaded");
}

/* After its first use in a context a library is a module there. */
static void libraries(const char *name, const void *image)
{
	CUlibrary library;
	CUkernel kernel;
	CUfunction function;
	CUmodule module;
	CUdeviceptr address;
	size_t size;
	int frame = -1;

#define SAY(what) say_key(keyed("library.%s." what, name))
	mark();
	MUST(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	SAY("loaded");
	MUST(cuLibraryGetKernel(&kernel, library, "empty"));
	SAY("got_kernel");
	MUST(cuKernelGetAttribute(&frame, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, 0));
	SAY("got_attribute");
	MUST(cuKernelGetFunction(&function, kernel));
	SAY("got_function");
	MUST(launch((CUfunction)kernel));
	SAY("launched");
	MUST(cuLibraryUnload(library));
	SAY("unloaded");

	MUST(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuLibraryGetGlobal(&address, &size, library, "big"));
	SAY("got_array");
	MUST(cuLibraryUnload(library));
	MUST(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuLibraryGetModule(&module, library));
	SAY("got_module");
	MUST(cuLibraryUnload(library));
	MUST(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuLibraryGetKernel(&kernel, library, "empty"));
	MUST(launch((CUfunction)kernel));
	SAY("launched_alone");
	MUST(cuLibraryUnload(library));
	SAY("unloaded_again");
#undef SAY
}

static void linked(void)
{
	const char *text = with_array(ARRAY);
	CUlinkState state;
	void *image;
	size_t size;

	mark();
	MUST(cuLinkCreate_v2(0, NULL, NULL, &state));
	MUST(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1,
	                      "text", 0, NULL, NULL));
	MUST(cuLinkComplete(state, &image, &size));
	say_key("link.complete");
	links(image);
	MUST(cuLinkDestroy(state));
}

/* A library is loaded into each context that uses it, and unloaded from all. */
static void contexts(CUcontext first)
{
	CUlibrary library;
	CUmodule module;
	CUcontext second;
	long long without;

	MUST(cuLibraryLoadData(&library, with_array(ARRAY), NULL, NULL, 0, NULL, NULL, 0));
	without = held();
	MUST(cuCtxCreate_v2(&second, 0, 0));
	mark();
	MUST(cuLibraryGetModule(&module, library));
	say_taken("contexts.second");
	MUST(cuCtxSetCurrent(first));
	MUST(cuLibraryGetModule(&module, library));
	say_taken("contexts.both");
	MUST(cuCtxDestroy_v2(second));
	MUST(cuCtxSetCurrent(first));
	printf("contexts.second_destroyed: held %lld\n", held() - without);
	MUST(cuLibraryUnload(library));
	printf("contexts.unloaded: held %lld\n", held() - without);
}

static CUkernel fresh_kernel(CUlibrary *library)
{
	CUkernel kernel;

	MUST(cuLibraryLoadData(library, with_array(ARRAY), NULL, NULL, 0, NULL, NULL, 0));
	MUST(cuLibraryGetKernel(&kernel, *library, "empty"));
	mark();
	return kernel;
}

static void run_graph(const char *prefix, CUgraph graph, CUstream stream)
{
	CUgraphExec exec;

	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	say_taken(keyed("%s.instantiated", prefix));
	MUST(cuGraphLaunch(exec, stream));
	MUST(cuStreamSynchronize(stream));
	say_taken(keyed("%s.launched", prefix));
	MUST(cuGraphExecDestroy(exec));
	MUST(cuGraphDestroy(graph));
}

/* A kernel's handle belongs to no context: which one it is launched in, and when its library is
 * loaded there. The first context is the current one. */
static void handles(CUcontext first)
{
	CUDA_KERNEL_NODE_PARAMS params;
	uint64_t x = 0;
	void *parameters[] = {&x};
	CUcontext second;
	CUgraphNode node;
	CUlibrary library;
	CUkernel kernel;
	CUstream stream;
	CUmodule module;
	CUgraph graph;

	MUST(cuCtxCreate_v2(&second, 0, 0));
	MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	MUST(cuCtxSetCurrent(first));

	kernel = fresh_kernel(&library);
	say_result("handles.launch", launch((CUfunction)(void *)kernel));
	say_taken("handles.first");
	say_result("handles.launch_in_stream", launch_kernel(kernel, stream));
	MUST(cuStreamSynchronize(stream));
	say_taken("handles.both");
	MUST(cuLibraryUnload(library));
	say_taken("handles.unloaded");

	kernel = fresh_kernel(&library);
	MUST(launch_kernel(kernel, stream));
	MUST(cuStreamSynchronize(stream));
	say_taken("handles.stream");
	MUST(cuCtxSetCurrent(second));
	MUST(cuLibraryGetModule(&module, library));
	MUST(cuCtxSetCurrent(first));
	say_taken("handles.stream.same_context");
	MUST(cuLibraryUnload(library));

	kernel = fresh_kernel(&library);
	MUST(cuStreamBeginCapture_v2(stream, 0));
	say_result("handles.capture", launch_kernel(kernel, stream));
	MUST(cuStreamEndCapture(stream, &graph));
	say_taken("handles.captured");
	run_graph("handles.captured", graph, stream);
	MUST(cuLibraryUnload(library));

	kernel = fresh_kernel(&library);
	params = kernel_node(NULL, parameters);
	params.kern = kernel;
	params.ctx = second;
	MUST(cuGraphCreate(&graph, 0));
	MUST(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
	say_taken("handles.node");
	params = (CUDA_KERNEL_NODE_PARAMS){0};
	MUST(cuGraphKernelNodeGetParams_v2(node, &params));
	printf("handles.node.says: function %d, kernel %d, context %d\n", params.func != NULL,
	       params.kern == kernel, params.ctx == second);
	run_graph("handles.node", graph, stream);
	MUST(cuCtxSetCurrent(second));
	MUST(cuLibraryGetModule(&module, library));
	MUST(cuCtxSetCurrent(first));
	say_taken("handles.node.same_context");
	MUST(cuLibraryUnload(library));
	MUST(cuCtxDestroy_v2(second));
	MUST(cuCtxSetCurrent(first));
}

/* Up to 1 MiB they share blocks; larger ones have their own. */
static void sizes(void)
{
	CUmodule modules[40];

	mark();
	for (int i = 0; i < 4; i++) {
		MUST(cuModuleLoadData(&modules[i], with_array(3 * MiB)));
		say_key(keyed("size.3MiB.%d", i + 1));
	}
	for (int i = 0; i < 4; i++)
		MUST(cuModuleUnload(modules[i]));
	say_key("size.3MiB.unloaded");
	mark();
	for (int i = 0; i < 40; i++)
		MUST(cuModuleLoadData(&modules[i], with_array(100 * KiB)));
	say_key("size.100KiB.40");
	for (int i = 0; i < 40; i++)
		MUST(cuModuleUnload(modules[i]));
	say_key("size.100KiB.unloaded");
}

#define CODES 100
#define CODE_STEPS 4000

static char *with_code(void)
{
	size_t room = (size_t)CODES * (CODE_STEPS * 40 + 1000), length;
	char *text = malloc(room);

	if (!text)
		stop("no memory");
	length = (size_t)snprintf(text, room, PTX_HEADER ".visible .global .align 4 .u32 sink;\n");
	for (int i = 0; i < CODES; i++) {
		length += (size_t)snprintf(text + length, room - length,
		                           ".visible .entry code%d(.param .u64 x)\n{\n"
		                           " .reg .b32 %%r<3>;\n .reg .b64 %%rd<2>;\n"
		                           " ld.param.u32 %%r1, [x];\n mov.u64 %%rd1, sink;\n",
		                           i);
		for (int j = 0; j < CODE_STEPS; j++)
			length +=
			    (size_t)snprintf(text + length, room - length,
			                     " mad.lo.u32 %%r1, %%r1, %%r1, %d;\n", i + j * 3 + 1);
		length += (size_t)snprintf(text + length, room - length,
		                           " st.global.u32 [%%rd1], %%r1;\n ret;\n}\n");
	}
	return text;
}

/* Code without arrays: when does a function's code take memory, if others surround it? */
static void large_code(void)
{
	char *text = with_code(), name[16];
	CUfunction function;
	CUlibrary library;
	CUkernel kernels[2];
	CUmodule module;

	mark();
	MUST(cuModuleLoadData(&module, text));
	say_key("code.loaded");
	MUST(cuModuleGetFunction(&function, module, "code0"));
	say_key("code.one_looked_up");
	MUST(launch(function));
	say_key("code.one_launched");
	for (int i = 1; i < CODES; i++) {
		snprintf(name, sizeof(name), "code%d", i);
		MUST(cuModuleGetFunction(&function, module, name));
	}
	say_key("code.all_looked_up");
	MUST(launch(function));
	say_key("code.another_launched");
	MUST(cuModuleUnload(module));
	say_key("code.unloaded");

	MUST(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0));
	say_key("code.library.loaded");
	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "code%d", i);
		MUST(cuLibraryGetKernel(&kernels[i], library, name));
		MUST(launch((CUfunction)(void *)kernels[i]));
		say_key(i ? "code.library.another_launched" : "code.library.one_launched");
	}
	MUST(cuLibraryUnload(library));
	say_key("code.library.unloaded");
	free(text);
}

/* Which queries of a kernel's handle load its library. */
static void questions(void)
{
	CUlibrary library;
	CUfunction kernel;
	size_t offset;
	int value;

	kernel = (CUfunction)(void *)fresh_kernel(&library);
	value = 0;
	say_result("questions.get", cuFuncGetAttribute(&value, 0, kernel));
	say_taken("questions.get");
	say_result("questions.parameter", cuFuncGetParamInfo(kernel, 0, &offset, NULL));
	say_taken("questions.parameter");
	say_result("questions.set", cuFuncSetAttribute(kernel, 8, 1024));
	say_taken("questions.set");
	say_result("questions.load", cuFuncLoad(kernel));
	say_taken("questions.load");
	MUST(cuLibraryUnload(library));
}

#define MANAGED                                                                                    \
	PTX_HEADER ".visible .global .attribute(.managed) .align 16 .b8 big[67108864];\n"          \
	           ".global .attribute(.managed) .align 4 .u32 small;\n" PTX_EMPTY

static void say_variable(const char *key, CUresult result, CUdeviceptr address, size_t size)
{
	unsigned int is_managed = 0;

	cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
	printf("%s: %s, %zu bytes, managed %u\n", key, name_of(result), size, is_managed);
}

/* Variables that are managed memory: in a module, and in a library that two contexts use. */
static void managed(CUcontext first)
{
	CUdeviceptr address = 0, other = 0;
	CUcontext second;
	CUlibrary library;
	CUresult result;
	CUmodule module;
	size_t size = 0;

	mark();
	MUST(cuModuleLoadData(&module, MANAGED));
	say_taken("managed.loaded");
	result = cuModuleGetGlobal_v2(&address, &size, module, "big");
	say_variable("managed.variable", result, address, size);
	result = cuModuleGetGlobal_v2(&other, &size, module, "small");
	say_variable("managed.static", result, other, size);
	MUST(cuMemsetD8_v2(address, 1, 64 * MiB));
	MUST(cuCtxSynchronize());
	say_taken("managed.touched");
	MUST(cuModuleUnload(module));
	say_taken("managed.unloaded");

	MUST(cuCtxCreate_v2(&second, 0, 0));
	MUST(cuCtxSetCurrent(first));
	MUST(cuLibraryLoadData(&library, MANAGED, NULL, NULL, 0, NULL, NULL, 0));
	address = 0;
	result = cuLibraryGetManaged(&address, &size, library, "big");
	say_variable("managed.library", result, address, size);
	MUST(cuCtxSetCurrent(second));
	result = cuLibraryGetManaged(&other, &size, library, "big");
	say_variable("managed.library.second", result, other, size);
	printf("managed.library.second.same: %d\n", address == other);
	MUST(cuLibraryUnload(library));
	MUST(cuCtxDestroy_v2(second));
	MUST(cuCtxSetCurrent(first));
}

static void refusals(void)
{
	CUmodule module;
	CUlibrary library;
	CUresult result;

	mark();
	say_result("full.module", cuModuleLoadData(&module, with_array(400 * GiB)));
	result = cuLibraryLoadData(&library, with_array(400 * GiB), NULL, NULL, 0, NULL, NULL, 0);
	say_result("full.library", result);
	if (result == CUDA_SUCCESS) {
		say_result("full.library.module", cuLibraryGetModule(&module, library));
		MUST(cuLibraryUnload(library));
	}
	say_key("full");
}

int main(int argc, char **argv)
{
	CUcontext context;

	if (argc > 1)
		mode = "eager.";
	context = start_with_context();
	modules();
	linked();
	libraries("text", with_array(ARRAY));
	if (argc == 1)
		sizes();
	large_code();
	if (argc > 1)
		return 0;
	contexts(context);
	handles(context);
	managed(context);
	questions();
	refusals();
	/* In a new process that inherits nothing of the driver. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	execl("/proc/self/exe", argv[0], "eager", (char *)NULL);
	stop("execl failed");
}
