/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory for other processes: as a file. Its descriptor is passed by fork or a Unix
 * socket. The file holds the memory as a handle does.
 */
#include "hold.h"
#include "physical.h"

/* INVALID_VALUE: there is no such type; NOT_SUPPORTED: this machine does not have it. */
static CUresult check_type(int type)
{
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_SUCCESS;
	return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED
	                                         : CUDA_ERROR_INVALID_VALUE;
}

static CUresult export(int *out, struct physical *physical)
{
	uint64_t object;

	if (!out || !physical || physical->multicast ||
	    !(physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_INVALID_VALUE;
	object = physical_share(physical);
	if (!object)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = object_export(object);
	return *out == -1 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUDA_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                               int type, unsigned long long flags)
{
	DRIVER_ENTER();
	TRY(flags ? CUDA_ERROR_INVALID_VALUE : check_type(type));
	return export(out, physical_of(handle));
}

/* Each import is a handle of its own. */
static CUresult import(CUmemGenericAllocationHandle *out, int fd)
{
	struct physical *physical;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(physical_import(object_of_file(fd), &physical));
	if (!physical_enlist(physical)) {
		physical_release(physical);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = physical->handle;
	return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                                 int type)
{
	DRIVER_ENTER();
	TRY(check_type(type));
	return import(out, (int)(intptr_t)handle);
}
