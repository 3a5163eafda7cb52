/* SPDX-License-Identifier: Apache-2.0 */
/* The one context per card that programs of the CUDA runtime share. */
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
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(primary_retain(device));
	*out = &device->primary;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!device->primary.retained)
		return CUDA_ERROR_INVALID_CONTEXT;
	primary_release(device);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
	return cuDevicePrimaryCtxRelease_v2(ordinal);
}

/* The count of retains stays, since their releases follow. */
CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (device->primary.alive)
		context_deactivate(&device->primary);
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
	return cuDevicePrimaryCtxReset_v2(ordinal);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
	DRIVER_ENTER_DEVICE(device, ordinal);
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = device->primary.flags;
	*active = device->primary.alive;
	return CUDA_SUCCESS;
}
