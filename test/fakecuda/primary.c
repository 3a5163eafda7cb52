/* SPDX-License-Identifier: Apache-2.0 */
/* The one context per card that the CUDA runtime's programs share. */
#include "driver.h"

CUresult primary_retain(struct device *device)
{
	CUcontext primary = &device->primary;
	CUresult result = CUDA_SUCCESS;

	primary->primary = true;
	if (!primary->alive)
		result = context_activate(primary, device, 0);
	if (result == CUDA_SUCCESS)
		primary->retained++;
	return result;
}

void primary_release(struct device *device)
{
	device->primary.retained--;
	if (!device->primary.retained && device->primary.alive)
		context_deactivate(&device->primary);
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!out)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	result = primary_retain(device);
	if (result == CUDA_SUCCESS)
		*out = &device->primary;
	return driver_leave(result);
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device->primary.retained)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	primary_release(device);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return cuDevicePrimaryCtxRelease_v2(ordinal);
}

/* The count of retains stays: their releases are still to come. */
CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (device->primary.alive)
		context_deactivate(&device->primary);
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return cuDevicePrimaryCtxReset_v2(ordinal);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags || !active)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = device->primary.flags;
	*active = device->primary.alive;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
	struct device *device;
	CUresult result = driver_enter_device(ordinal, &device);

	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~CU_CTX_FLAGS_MASK)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	device->primary.flags = flags;
	return driver_leave(CUDA_SUCCESS);
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}
