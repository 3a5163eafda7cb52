/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/* All are in the oldest driver with virtual memory management that gpuslice supports. */
#define FUNCTIONS(F)                                                                               \
	F(cuInit, (unsigned int))                                                                  \
	F(cuGetErrorName, (CUresult, const char **))                                               \
	F(cuGetErrorString, (CUresult, const char **))                                             \
	F(cuDeviceGetCount, (int *))                                                               \
	F(cuDeviceGetName, (char *, int, CUdevice))                                                \
	F(cuDeviceGetAttribute, (int *, int, CUdevice))                                            \
	F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	F(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	F(cuCtxPushCurrent_v2, (CUcontext))                                                        \
	F(cuCtxPopCurrent_v2, (CUcontext *))                                                       \
	F(cuMemGetInfo_v2, (size_t *, size_t *))                                                   \
	F(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, int))             \
	F(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	F(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	F(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,       \
	                unsigned long long))                                                       \
	F(cuMemRelease, (CUmemGenericAllocationHandle))                                            \
	F(cuMemMap,                                                                                \
	  (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))         \
	F(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	F(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                  \
	F(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t))                                    \
	F(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))

#define DECLARE(name, parameters) CUresult(*name) parameters;
static struct {
	FUNCTIONS(DECLARE)
} driver;

/*
 * Looked up as programs do, by the library's handle: inside a slice the interceptor answers both.
 * It is never closed, for the driver's threads run in it.
 */
const char *native_load(char *message, size_t size)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		const char *why = dlerror();

		snprintf(message, size, "%s", why ? why : "libcuda.so.1 cannot be opened");
		return message;
	}
#define FIND(name, parameters)                                                                     \
	*(void **)&driver.name = dlsym(library, #name);                                            \
	if (!driver.name) {                                                                        \
		snprintf(message, size, "libcuda.so.1 has no " #name);                             \
		return message;                                                                    \
	}
	FUNCTIONS(FIND)
	return NULL;
}

static bool failed(struct outcome outcome)
{
	return outcome.result != CUDA_SUCCESS;
}

struct outcome native_enter(CUcontext context)
{
	return CALL(cuCtxPushCurrent_v2, (context));
}

struct outcome native_leave(struct outcome outcome)
{
	CUcontext ours;

	driver.cuCtxPopCurrent_v2(&ours);
	return outcome;
}

struct outcome native_init(void)
{
	return CALL(cuInit, (0));
}

struct outcome native_count(int *count)
{
	return CALL(cuDeviceGetCount, (count));
}

struct outcome native_open(int ordinal, CUcontext *context)
{
	return CALL(cuDevicePrimaryCtxRetain, (context, ordinal));
}

struct outcome native_close(int ordinal)
{
	return CALL(cuDevicePrimaryCtxRelease_v2, (ordinal));
}

struct outcome native_attribute(int ordinal, int attribute, int *value)
{
	return CALL(cuDeviceGetAttribute, (value, attribute, ordinal));
}

struct outcome native_name(int ordinal, char *name, int size)
{
	return CALL(cuDeviceGetName, (name, size, ordinal));
}

static CUmemLocation on(int ordinal)
{
	return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
}

static CUmemAllocationProp pinned(int ordinal)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                             .location = on(ordinal)};
}

struct outcome native_granularity(int ordinal, int option, size_t *bytes)
{
	CUmemAllocationProp properties = pinned(ordinal);

	return CALL(cuMemGetAllocationGranularity, (bytes, &properties, option));
}

struct outcome native_memory_info(CUcontext context, size_t *available, size_t *total)
{
	CALL_IN(context, cuMemGetInfo_v2, (available, total));
}

struct outcome native_reserve(CUcontext context, size_t bytes, CUdeviceptr *start)
{
	CALL_IN(context, cuMemAddressReserve, (start, bytes, 0, 0, 0));
}

struct outcome native_free(CUcontext context, CUdeviceptr start, size_t bytes)
{
	CALL_IN(context, cuMemAddressFree, (start, bytes));
}

struct outcome native_create(CUcontext context, int ordinal, size_t bytes,
                             CUmemGenericAllocationHandle *handles, size_t count)
{
	CUmemAllocationProp properties = pinned(ordinal);
	struct outcome outcome = native_enter(context);

	if (failed(outcome))
		return outcome;
	for (size_t i = 0; i < count; i++) {
		outcome = CALL(cuMemCreate, (&handles[i], bytes, &properties, 0));
		outcome.done = failed(outcome) ? i : i + 1;
		if (failed(outcome))
			break;
	}
	return native_leave(outcome);
}

struct outcome native_release(CUcontext context, const CUmemGenericAllocationHandle *handles,
                              size_t count)
{
	struct outcome first = native_enter(context);
	size_t done = 0;

	if (failed(first))
		return first;
	for (size_t i = 0; i < count; i++) {
		struct outcome outcome = CALL(cuMemRelease, (handles[i]));

		done += !failed(outcome);
		if (!failed(first))
			first = outcome;
	}
	first.done = done;
	return native_leave(first);
}

static struct outcome open_to(int ordinal, CUdeviceptr start, size_t bytes, int access)
{
	CUmemAccessDesc description = {.location = on(ordinal), .flags = access};

	return CALL(cuMemSetAccess, (start, bytes, &description, 1));
}

static struct outcome map_all(CUdeviceptr start, size_t bytes,
                              const CUmemGenericAllocationHandle *handles, size_t count)
{
	struct outcome outcome = {0};

	for (size_t i = 0; i < count; i++) {
		outcome = CALL(cuMemMap, (start + i * bytes, bytes, 0, handles[i], 0));
		outcome.done = failed(outcome) ? i : i + 1;
		if (failed(outcome))
			break;
	}
	return outcome;
}

struct outcome native_map(CUcontext context, int ordinal, CUdeviceptr start, size_t bytes,
                          const CUmemGenericAllocationHandle *handles, size_t count, int access)
{
	struct outcome outcome = native_enter(context);
	size_t mapped;

	if (failed(outcome))
		return outcome;
	outcome = map_all(start, bytes, handles, count);
	mapped = outcome.done;
	if (!failed(outcome) && access)
		outcome = open_to(ordinal, start, count * bytes, access);
	outcome.done = failed(outcome) ? 0 : count;
	if (failed(outcome) && mapped)
		outcome.undo = driver.cuMemUnmap(start, mapped * bytes);
	return native_leave(outcome);
}

struct outcome native_access(CUcontext context, int ordinal, CUdeviceptr start, size_t bytes,
                             int access)
{
	struct outcome entered = native_enter(context);

	return failed(entered) ? entered : native_leave(open_to(ordinal, start, bytes, access));
}

struct outcome native_unmap(CUcontext context, CUdeviceptr start, size_t bytes)
{
	CALL_IN(context, cuMemUnmap, (start, bytes));
}

struct outcome native_write(CUcontext context, CUdeviceptr to, const void *from, size_t bytes)
{
	CALL_IN(context, cuMemcpyHtoD_v2, (to, from, bytes));
}

struct outcome native_read(CUcontext context, void *to, CUdeviceptr from, size_t bytes)
{
	CALL_IN(context, cuMemcpyDtoH_v2, (to, from, bytes));
}

const char *native_result_name(CUresult result)
{
	const char *name = NULL;

	if (!driver.cuGetErrorName) /* no driver was opened */
		return "";
	return driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "";
}

const char *native_result_text(CUresult result)
{
	const char *text = NULL;

	return driver.cuGetErrorString(result, &text) == CUDA_SUCCESS && text ? text : "";
}
