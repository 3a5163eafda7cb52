/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multicast objects on a machine of two cards: what may be bound, and that a bind holds memory. It
 * prints what is wrong, and exits 0 if nothing is.
 */
#include "../../../../interceptor/table.h"

#include <stdio.h>

#define MIB (1ull << 20)
#define SIZE (64 * MIB)

typedef CUmemGenericAllocationHandle CUhandle;

CUresult cuInit(unsigned int);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMulticastGetGranularity(size_t *, const CUmulticastObjectProp *, int);

static int wrong;

static void want(long long got, long long wanted, const char *what)
{
	if (got == wanted)
		return;
	printf("%s: %lld, want %lld\n", what, got, wanted);
	wrong = 1;
}
#define WANT(call, wanted) want(call, wanted, #call)

/* MiB of card 0 in use since the first call. */
static long long held(void)
{
	static size_t first;
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	if (!first)
		first = available;
	return (long long)((first - available) / MIB);
}

static CUhandle create(int device)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUhandle handle = 0;

	WANT(cuMemCreate(&handle, SIZE, &properties, 0), CUDA_SUCCESS);
	return handle;
}

static CUhandle make_object(void)
{
	CUmulticastObjectProp two = {.numDevices = 2, .size = 2 * SIZE};
	CUmulticastObjectProp three = {.numDevices = 3, .size = 2 * SIZE};
	CUhandle object = 0, early = create(0);
	size_t granularity = 0;

	WANT(cuMulticastGetGranularity(&granularity, &two, 0), CUDA_SUCCESS);
	want((long long)granularity, 2 * MIB, "granularity");
	WANT(cuMulticastCreate(&object, &three), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastCreate(&object, &two), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 0), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_DEVICE);
	WANT(cuMulticastBindMem(object, 0, early, 0, SIZE, 0), CUDA_ERROR_NOT_PERMITTED);
	WANT(cuMemRelease(early), CUDA_SUCCESS);
	WANT(cuMulticastAddDevice(object, 1), CUDA_SUCCESS);
	WANT(held(), 0);
	return object;
}

static void binds(CUhandle object)
{
	CUhandle memory = create(0), other = create(1);
	CUdeviceptr space = 0;

	WANT(cuMulticastBindMem(object, 1, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 2 * SIZE, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(memory, 0, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 0, memory, 0, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMulticastBindMem(object, 0, memory, 0, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastBindMem(object, 0, other, 0, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(memory), CUDA_SUCCESS);
	WANT(held(), 64);
	WANT(cuMulticastUnbind(object, 0, 0, SIZE / 2), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMulticastUnbind(object, 0, 0, SIZE), CUDA_SUCCESS);
	WANT(held(), 0);

	memory = create(0);
	WANT(cuMemAddressReserve(&space, SIZE, 0, 0, 0), CUDA_SUCCESS);
	WANT(cuMulticastBindAddr(object, SIZE, space, SIZE, 0), CUDA_ERROR_INVALID_VALUE);
	WANT(cuMemMap(space, SIZE, 0, memory, 0), CUDA_SUCCESS);
	WANT(cuMulticastBindAddr(object, SIZE, space, SIZE, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(memory), CUDA_SUCCESS);
	WANT(cuMemUnmap(space, SIZE), CUDA_SUCCESS);
	WANT(held(), 64);
	WANT(cuMemRelease(other), CUDA_SUCCESS);
}

int main(void)
{
	CUcontext context;
	CUdeviceptr space = 0;
	CUhandle object;

	WANT(cuInit(0), CUDA_SUCCESS);
	WANT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	WANT(cuCtxSetCurrent(context), CUDA_SUCCESS);
	held();
	object = make_object();
	binds(object);
	/* The object's own mapping keeps it, and what is bound to it. */
	WANT(cuMemAddressReserve(&space, 2 * SIZE, 0, 0, 0), CUDA_SUCCESS);
	WANT(cuMemMap(space, 2 * SIZE, 0, object, 0), CUDA_SUCCESS);
	WANT(cuMemRelease(object), CUDA_SUCCESS);
	WANT(held(), 64);
	WANT(cuMemUnmap(space, 2 * SIZE), CUDA_SUCCESS);
	WANT(held(), 0);
	return wrong;
}
