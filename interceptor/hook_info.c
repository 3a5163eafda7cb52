/* SPDX-License-Identifier: Apache-2.0 */
/* Queries of CUDA programs for the card's memory, which show the slice's. */
#include "table.h"
#include "view.h"

#define GET_INFO(name, type)                                                                       \
	CUresult name(type *available, type *total)                                                \
	{                                                                                          \
		CUdevice ordinal = process_current_ordinal();                                      \
		CUresult result = DRIVER(name)(available, total);                                  \
		struct view view;                                                                  \
                                                                                                   \
		if (result != CUDA_SUCCESS || ordinal < 0 || !available || !total)                 \
			return result;                                                             \
		view = view_of(process_device_attached(ordinal));                                  \
		*total = (type)least(*total, view.total);                                          \
		*available = (type)least(*available, view.left);                                   \
		return result;                                                                     \
	}

GET_INFO(cuMemGetInfo_v2, size_t)
GET_INFO(cuMemGetInfo, unsigned int)

#define TOTAL(name, type)                                                                          \
	CUresult name(type *bytes, CUdevice device)                                                \
	{                                                                                          \
		CUresult result = DRIVER(name)(bytes, device);                                     \
                                                                                                   \
		if (result == CUDA_SUCCESS && bytes)                                               \
			*bytes =                                                                   \
			    (type)least(*bytes, view_of(process_device_attached(device)).total);   \
		return result;                                                                     \
	}

TOTAL(cuDeviceTotalMem_v2, size_t)
TOTAL(cuDeviceTotalMem, unsigned int)
