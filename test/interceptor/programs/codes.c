/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls each hooked function of the driver with wrong arguments, and prints a line "situation
 * arguments name code" for each call: "small3" lacks the third argument. Each call is made in a
 * process of its own. The codes must be the same without the interceptor.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS 12
#define NO_DEVICE 63
#define SECONDS 30
#define NOT_MADE -1 /* this driver lacks the function, or there is no such situation */

enum situation { UNINITIALISED, NO_CONTEXT, FORKED, DESTROYED, CURRENT, SITUATIONS };
static const char *const situations[] = {"uninitialised", "no-context", "forked", "destroyed",
                                         "current"};

enum given { NOTHING, SMALL, ZERO, LARGE, BAD_DEVICE, GONE, GIVENS };
static const char *const givens[] = {"null", "small", "zero", "large", "bad-device", "gone"};

static const struct {
	const char *name, *arguments;
} functions[] = {
#define HOOK(name, arguments, charged, released) {#name, #arguments},
#include "driver.def"
};

#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

static int *answer;      /* of the process that made the call */
static int lacking = -1; /* the one argument that is NULL or 0 */

static struct {
	CUdeviceptr pointer;
	CUmemGenericAllocationHandle handle;
	CUmemoryPool pool;
} gone;

static CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static CUmemPoolProps pool_properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
static CUDA_ARRAY_DESCRIPTOR shape = {.Format = 1, .NumChannels = 1};
static CUDA_ARRAY3D_DESCRIPTOR shape_3d = {.Format = 1, .NumChannels = 1};
static CUDA_EXTERNAL_MEMORY_HANDLE_DESC external = {
    .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle.fd = -1};

static void fill_structures(size_t size, int device)
{
	properties.location.id = pool_properties.location.id = location.id = device;
	shape.Width = shape_3d.Width = size;
	shape.Height = size > 1024 ? 1024 : size;
	external.size = size;
}

static bool is(const char *text, const char *type)
{
	return strncmp(text, type, strlen(type)) == 0;
}

static uint64_t value_of(const char *type, enum given given)
{
	static uint64_t nothing[GIVENS * ARGUMENTS * 64];
	static size_t used;
	static const size_t sizes[GIVENS] = {
	    [SMALL] = 4096, [LARGE] = 1ull << 46, [GONE] = 4096, [BAD_DEVICE] = 4096};

	if (given == NOTHING)
		return 0;
	if (strchr(type, '*')) {
		if (is(type, "const char *"))
			return (uint64_t)(uintptr_t) "none";
		if (is(type, "const CUmemAllocationProp"))
			return (uint64_t)(uintptr_t)&properties;
		if (is(type, "const CUmemPoolProps"))
			return (uint64_t)(uintptr_t)&pool_properties;
		if (is(type, "CUmemLocation"))
			return (uint64_t)(uintptr_t)&location;
		if (is(type, "const CUDA_ARRAY_DESCRIPTOR *"))
			return (uint64_t)(uintptr_t)&shape;
		if (is(type, "const CUDA_ARRAY3D_DESCRIPTOR *"))
			return (uint64_t)(uintptr_t)&shape_3d;
		if (is(type, "const CUDA_EXTERNAL"))
			return (uint64_t)(uintptr_t)&external;
		used += 64;
		return (uint64_t)(uintptr_t)&nothing[used];
	}
	if (is(type, "size_t "))
		return sizes[given];
	if (is(type, "unsigned int "))
		return given == LARGE ? 0xfffff000 : strstr(type, "element") ? 4 : sizes[given];
	if (is(type, "CUdevice "))
		return given == BAD_DEVICE ? NO_DEVICE : 0;
	if (given != GONE)
		return 0;
	if (is(type, "CUdeviceptr "))
		return gone.pointer;
	if (is(type, "CUmemoryPool "))
		return (uint64_t)(uintptr_t)gone.pool;
	return is(type, "CUmemGenericAllocationHandle ") ? gone.handle : 0;
}

/* Flags, counts and structures passed by value stay 0. */
static bool stays_zero(const char *argument)
{
	return strstr(argument, "flags") || strstr(argument, "count") || is(argument, "CUipcMem");
}

static void call(size_t which, enum given given)
{
	typedef CUresult function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
	                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
	uint64_t a[ARGUMENTS] = {0};
	char text[512], *rest, *argument;
	function *f;
	size_t count = 0;

	fill_structures(given == LARGE  ? 1ull << 40
	                : given == ZERO ? 0
	                                : 64,
	                given == BAD_DEVICE ? NO_DEVICE : 0);
	snprintf(text, sizeof(text), "%s", functions[which].arguments + 1); /* after the bracket */
	for (argument = strtok_r(text, ",", &rest); argument && count < ARGUMENTS;
	     argument = strtok_r(NULL, ",", &rest)) {
		argument += strspn(argument, " ");
		if (!stays_zero(argument) && (int)count != lacking)
			a[count] = value_of(argument, given);
		count++;
	}
	*(void **)&f = dlsym(dlopen("libcuda.so.1", RTLD_NOW), functions[which].name);
	if (f)
		*answer =
		    f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

static bool lose_all(void)
{
	return cuMemAlloc_v2(&gone.pointer, 4 << 20) == CUDA_SUCCESS &&
	       cuMemFree_v2(gone.pointer) == CUDA_SUCCESS &&
	       cuMemCreate(&gone.handle, 2 << 20, &properties, 0) == CUDA_SUCCESS &&
	       cuMemRelease(gone.handle) == CUDA_SUCCESS &&
	       cuMemPoolCreate(&gone.pool, &pool_properties) == CUDA_SUCCESS &&
	       cuMemPoolDestroy(gone.pool) == CUDA_SUCCESS;
}

static void call_in(enum situation situation, size_t which, enum given given)
{
	CUcontext context;
	CUdeviceptr kept;
	pid_t child;

	if (situation != UNINITIALISED && cuInit(0) != CUDA_SUCCESS)
		return;
	if (situation > NO_CONTEXT &&
	    (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS ||
	     cuMemAlloc_v2(&kept, 1) != CUDA_SUCCESS || (given == GONE && !lose_all()) ||
	     (situation == DESTROYED && cuCtxDestroy_v2(context) != CUDA_SUCCESS)))
		return;
	child = situation == FORKED ? fork() : 0;
	if (child)
		waitpid(child, NULL, 0);
	else
		call(which, given);
}

static void print_one(enum situation situation, size_t which, enum given given)
{
	int status = 0;
	pid_t child;

	*answer = NOT_MADE;
	child = fork();
	if (child == 0) {
		alarm(SECONDS);
		call_in(situation, which, given);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	if (*answer != NOT_MADE || status)
		printf("%s %s%.*d %s %d%s\n", situations[situation], givens[given], lacking >= 0,
		       lacking + 1, functions[which].name, *answer, status ? " ended" : "");
}

/* A call with the handle of a destroyed pool has an error only if no later pool has that handle. */
static bool stays_lost(void)
{
	int status = -1;
	pid_t child = fork();
	CUmemoryPool pool;

	if (child == 0)
		_exit(cuInit(0) == CUDA_SUCCESS &&
		      cuMemPoolCreate(&gone.pool, &pool_properties) == CUDA_SUCCESS &&
		      cuMemPoolDestroy(gone.pool) == CUDA_SUCCESS &&
		      cuMemPoolCreate(&pool, &pool_properties) == CUDA_SUCCESS &&
		      pool == gone.pool);
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(void)
{
	answer =
	    mmap(NULL, sizeof(*answer), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (answer == MAP_FAILED || setrlimit(RLIMIT_CORE, &(struct rlimit){0}))
		return 1;
	if (!stays_lost()) {
		fprintf(stderr, "codes: a pool has the handle of a destroyed one\n");
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0); /* no child prints a line of this process */
	for (enum situation situation = UNINITIALISED; situation < SITUATIONS; situation++) {
		/* Destroyed objects need a context. */
		enum given last = situation > FORKED ? GONE : BAD_DEVICE;

		for (enum given given = NOTHING; given <= last; given++) {
			for (size_t which = 0; which < FUNCTIONS; which++)
				print_one(situation, which, given);
		}
	}
	for (size_t which = 0; which < FUNCTIONS; which++) {
		const char *rest = functions[which].arguments;

		for (lacking = 0; rest; lacking++, rest = strchr(rest + 1, ','))
			print_one(CURRENT, which, SMALL);
	}
	return 0;
}
