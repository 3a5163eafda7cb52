/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of pointers. Mapped memory, and so a piece, has no context for the driver. */
#include "piece.h"
#include "table.h"

static void know_context(void *value, int attribute, CUdeviceptr pointer)
{
	CUcontext context =
	    attribute == CU_POINTER_ATTRIBUTE_CONTEXT ? piece_context(pointer) : NULL;

	if (context)
		*(CUcontext *)value = context;
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
	CUresult result = DRIVER(cuPointerGetAttribute)(value, attribute, pointer);

	if (result == CUDA_SUCCESS)
		know_context(value, attribute, pointer);
	return result;
}

CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values,
                                CUdeviceptr pointer)
{
	CUresult result = DRIVER(cuPointerGetAttributes)(count, attributes, values, pointer);

	for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
		know_context(values[i], attributes[i], pointer);
	return result;
}

/* The driver says that mapped memory has SYNC_MEMOPS, and refuses to set it (driver observation).
 */
CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
	CUresult result = DRIVER(cuPointerSetAttribute)(value, attribute, pointer);

	if (result == CUDA_ERROR_NOT_SUPPORTED && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
	    *(const unsigned int *)value && piece_context(pointer))
		return CUDA_SUCCESS;
	return result;
}
