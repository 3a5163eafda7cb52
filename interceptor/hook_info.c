/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of CUDA programs for the card's memory, which show the slice's. */
#include "table.h"
#include "view.h"

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	struct view view;
	CUdevice ordinal = process_current_ordinal();
	CUresult result = DRIVER(cuMemGetInfo_v2)(available, total);

	if (result != CUDA_SUCCESS || ordinal < 0 || !available || !total)
		return result;
	view = view_of(process_device_attached(ordinal));
	*total = least(*total, view.total);
	*available = least(*available, view.left);
	return result;
}

CUresult cuMemGetInfo(unsigned int *available, unsigned int *total)
{
	struct view view;
	CUdevice ordinal = process_current_ordinal();
	CUresult result = DRIVER(cuMemGetInfo)(available, total);

	if (result != CUDA_SUCCESS || ordinal < 0 || !available || !total)
		return result;
	view = view_of(process_device_attached(ordinal));
	*total = (unsigned int)least(*total, view.total);
	*available = (unsigned int)least(*available, view.left);
	return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = DRIVER(cuDeviceTotalMem_v2)(bytes, device);

	if (result == CUDA_SUCCESS && bytes)
		*bytes = least(*bytes, view_of(process_device_attached(device)).total);
	return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
	CUresult result = DRIVER(cuDeviceTotalMem)(bytes, device);

	if (result == CUDA_SUCCESS && bytes)
		*bytes =
		    (unsigned int)least(*bytes, view_of(process_device_attached(device)).total);
	return result;
}
