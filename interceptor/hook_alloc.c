/* SPDX-License-Identifier: Apache-2.0 */
/* Linear memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree, in all versions. */
#include "hook.h"

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	uint64_t charged = footprint(bytes);
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemAlloc_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !pointer || !bytes)
		return DRIVER(cuMemAlloc_v2)(pointer, bytes);
	if (process_charge(ordinal, charged, "cuMemAlloc") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemAlloc_v2)(pointer, bytes);
	return held_or_released(result, result ? 0 : *pointer, ordinal, charged, KIND_LINEAR);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
	uint64_t charged = footprint(bytes);
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemAlloc))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !pointer || !bytes)
		return DRIVER(cuMemAlloc)(pointer, bytes);
	if (process_charge(ordinal, charged, "cuMemAlloc") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemAlloc)(pointer, bytes);
	return held_or_released(result, result ? 0 : *pointer, ordinal, charged, KIND_LINEAR);
}

/* Where a pitched allocation resides is known beforehand but for its pitch. Rows are padded to a
 * multiple of 512 bytes or more (driver observation: 1001 became 1024 on an H100). */
static uint64_t pitched(uint64_t width, uint64_t height)
{
	uint64_t pitch = (width + 511) & ~511ull, bytes;

	if (pitch < width || __builtin_mul_overflow(pitch, height, &bytes))
		return UINT64_MAX;
	return footprint(bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
	uint64_t charged = pitched(width, height), real;
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemAllocPitch_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !pointer || !pitch || !width || !height)
		return DRIVER(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
	if (process_charge(ordinal, charged, "cuMemAllocPitch") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
	if (result != CUDA_SUCCESS) {
		process_release(ordinal, charged);
		return result;
	}
	real = footprint(*pitch * height);
	if (real > charged &&
	    process_charge(ordinal, real - charged, "cuMemAllocPitch") != CHARGE_OK) {
		(void)DRIVER(cuMemFree_v2)(*pointer);
		process_release(ordinal, charged);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (real < charged)
		process_release(ordinal, charged - real);
	return held_or_released(result, *pointer, ordinal, real, KIND_LINEAR);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element)
{
	uint64_t charged = pitched(width, height);
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemAllocPitch))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !pointer || !pitch || !width || !height)
		return DRIVER(cuMemAllocPitch)(pointer, pitch, width, height, element);
	if (process_charge(ordinal, charged, "cuMemAllocPitch") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemAllocPitch)(pointer, pitch, width, height, element);
	return held_or_released(result, result ? 0 : *pointer, ordinal, charged, KIND_LINEAR);
}

/* Managed memory moves between host and device by use. Where it resides cannot be known, so all of
 * it counts, as if it were on the device that is current now. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
	uint64_t charged = footprint(bytes);
	CUdevice ordinal;
	CUresult result;

	if (!DRIVER_HAS(cuMemAllocManaged))
		return CUDA_ERROR_NOT_INITIALIZED;
	ordinal = process_current_ordinal();
	if (ordinal < 0 || !pointer || !bytes)
		return DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
	if (process_charge(ordinal, charged, "cuMemAllocManaged") != CHARGE_OK)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuMemAllocManaged)(pointer, bytes, flags);
	return held_or_released(result, result ? 0 : *pointer, ordinal, charged, KIND_LINEAR);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	struct map_value value;
	bool known;
	CUresult result;

	if (!DRIVER_HAS(cuMemFree_v2))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* Unknown is a pool's pointer (its pool holds the bytes), an import, or a mistake. */
	known = unhold(pointer, &value);
	result = DRIVER(cuMemFree_v2)(pointer);
	return known ? released_or_held(result, pointer, value) : result;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
	struct map_value value;
	bool known;
	CUresult result;

	if (!DRIVER_HAS(cuMemFree))
		return CUDA_ERROR_NOT_INITIALIZED;
	known = unhold(pointer, &value);
	result = DRIVER(cuMemFree)(pointer);
	return known ? released_or_held(result, pointer, value) : result;
}
