/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "../../interceptor/cuda_abi.h"

#define FUNCTIONS(F)                                                                               \
	F(cuInit, (unsigned int))                                                                  \
	F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
	F(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                \
	F(cuCtxPushCurrent_v2, (CUcontext))                                                        \
	F(cuCtxPopCurrent_v2, (CUcontext *))                                                       \
	F(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))   \
	F(cuMemAddressFree, (CUdeviceptr, size_t))                                                 \
	F(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,       \
	                unsigned long long))                                                       \
	F(cuMemRelease, (CUmemGenericAllocationHandle))                                            \
	F(cuMemMap,                                                                                \
	  (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))         \
	F(cuMemUnmap, (CUdeviceptr, size_t))                                                       \
	F(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

#define DECLARE(name, parameters) static CUresult(*name) parameters;
FUNCTIONS(DECLARE)

static CUcontext context;
static const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc open_to_card = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                             .flags = 3};

bool native_start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return false;
#define FIND(name, parameters)                                                                     \
	*(void **)&name = dlsym(library, #name);                                                   \
	if (!name)                                                                                 \
		return false;
	FUNCTIONS(FIND)
	return !cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0);
}

void native_end(void)
{
	cuDevicePrimaryCtxRelease_v2(0);
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool create(CUmemGenericAllocationHandle *handles, size_t page, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		if (cuMemCreate(&handles[i], page, &on_card, 0))
			return false;
	return true;
}

static bool map_one(CUdeviceptr at, size_t page, CUmemGenericAllocationHandle handle)
{
	return !cuMemMap(at, page, 0, handle, 0) && !cuMemSetAccess(at, page, &open_to_card, 1);
}

static bool give_one(CUdeviceptr at, size_t page, CUmemGenericAllocationHandle handle)
{
	return !cuMemUnmap(at, page) && !cuMemRelease(handle);
}

static bool time_pages(enum native_what what, CUdeviceptr start, size_t page, size_t pages,
                       CUmemGenericAllocationHandle *handles, uint64_t *took)
{
	if (what != NATIVE_NEW && !create(handles, page, pages))
		return false;
	for (size_t i = 0; i < pages; i++) {
		CUdeviceptr at = start + i * page;
		uint64_t begin = now();

		if (what == NATIVE_NEW && cuMemCreate(&handles[i], page, &on_card, 0))
			return false;
		if (!map_one(at, page, handles[i]))
			return false;
		took[i] = now() - begin;
	}
	for (size_t i = 0; i < pages; i++) {
		uint64_t begin = now();

		if (!give_one(start + i * page, page, handles[i]))
			return false;
		if (what == NATIVE_GIVE)
			took[i] = now() - begin;
	}
	return true;
}

static bool time_range(CUdeviceptr start, size_t page, size_t pages,
                       CUmemGenericAllocationHandle *handles, uint64_t *took)
{
	uint64_t begin = now();

	for (size_t i = 0; i < pages; i++)
		if (cuMemCreate(&handles[i], page, &on_card, 0) ||
		    cuMemMap(start + i * page, page, 0, handles[i], 0))
			return false;
	if (cuMemSetAccess(start, page * pages, &open_to_card, 1))
		return false;
	*took = now() - begin;
	if (cuMemUnmap(start, page * pages))
		return false;
	for (size_t i = 0; i < pages; i++)
		if (cuMemRelease(handles[i]))
			return false;
	return true;
}

/* A failure ends the program, which frees the rest. */
static bool in_range(enum native_what what, bool whole, size_t page, size_t pages, uint64_t *took)
{
	CUmemGenericAllocationHandle *handles = calloc(pages, sizeof(*handles));
	CUcontext popped;
	CUdeviceptr start = 0;
	bool good = handles && !cuCtxPushCurrent_v2(context) &&
	            !cuMemAddressReserve(&start, page * pages, 0, 0, 0);

	good = good && (whole ? time_range(start, page, pages, handles, took)
	                      : time_pages(what, start, page, pages, handles, took));
	good = good && !cuMemAddressFree(start, page * pages) && !cuCtxPopCurrent_v2(&popped);
	free(handles);
	return good;
}

bool native_pages(enum native_what what, size_t page, size_t pages, uint64_t *took)
{
	return in_range(what, false, page, pages, took);
}

bool native_range(size_t page, size_t pages, uint64_t *took)
{
	return in_range(NATIVE_NEW, true, page, pages, took);
}
