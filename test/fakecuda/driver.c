/* SPDX-License-Identifier: Apache-2.0 */
/* Initialisation, the process's lock, and error texts. */
#define _GNU_SOURCE
#include "driver.h"
#include "machine_checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#ifndef DRIVER_VERSION /* build.mk sets others */
#define DRIVER_VERSION 13000
#endif

enum { FRESH, READY, INHERITED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int phase = FRESH;

/* The real driver does not survive a fork: the child's calls answer NOT_INITIALIZED. */
static void after_fork(void)
{
	if (atomic_load(&phase) == READY)
		atomic_store(&phase, INHERITED);
}

CUresult driver_enter_locked(void)
{
	if (atomic_load(&phase) != READY)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	return CUDA_SUCCESS;
}

CUresult driver_enter(void)
{
	static const struct timespec moment = {.tv_nsec = 1000000};
	CUresult result = driver_enter_locked();

	while (result == CUDA_SUCCESS && machine_is_locked()) {
		driver_leave(CUDA_SUCCESS);
		nanosleep(&moment, NULL);
		result = driver_enter_locked();
	}
	return result;
}

CUresult driver_leave(CUresult result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

void driver_wait(pthread_cond_t *condition)
{
	pthread_cond_wait(condition, &lock);
}

CUresult driver_enter_context(CUcontext *current)
{
	CUresult fault;

	TRY(driver_enter());
	*current = context_current();
	if (!*current)
		return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!(*current)->alive)
		return driver_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	fault = context_faulted();
	return fault == CUDA_SUCCESS ? CUDA_SUCCESS : driver_leave(fault);
}

static CUresult join_machine(void)
{
	enum machine_status status = machine_open();

	if (status == MACHINE_OK && machine_device_count() == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (status == MACHINE_OK)
		status = machine_join();
	switch (status) {
	case MACHINE_OK:
		return devices_learn();
	case MACHINE_MISMATCH:
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	case MACHINE_FULL:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case MACHINE_UNREACHABLE:
		break;
	}
	return CUDA_ERROR_NO_DEVICE;
}

CUDA_API CUresult cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (atomic_load(&phase) == INHERITED)
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&lock);
	if (atomic_load(&phase) == FRESH) {
		result = join_machine();
		if (result == CUDA_SUCCESS) {
			pthread_atfork(NULL, NULL, after_fork);
			atomic_store(&phase, READY);
		}
	}
	return driver_leave(result);
}

CUDA_API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

/* A code and its name. */
#define NAMED(code) code, #code

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
    {NAMED(CUDA_SUCCESS), "no error"},
    {NAMED(CUDA_ERROR_INVALID_VALUE), "invalid argument"},
    {NAMED(CUDA_ERROR_OUT_OF_MEMORY), "out of memory"},
    {NAMED(CUDA_ERROR_NOT_INITIALIZED), "initialization error"},
    {NAMED(CUDA_ERROR_DEINITIALIZED), "driver shutting down"},
    {NAMED(CUDA_ERROR_NO_DEVICE), "no CUDA-capable device is detected"},
    {NAMED(CUDA_ERROR_INVALID_DEVICE), "invalid device ordinal"},
    {NAMED(CUDA_ERROR_INVALID_IMAGE), "device kernel image is invalid"},
    {NAMED(CUDA_ERROR_INVALID_CONTEXT), "invalid device context"},
    {NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU),
     "no kernel image is available for execution on the device"},
    {NAMED(CUDA_ERROR_INVALID_PTX), "a PTX JIT compilation failed"},
    {NAMED(CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
     "the provided PTX was compiled with an unsupported toolchain."},
    {NAMED(CUDA_ERROR_ALREADY_MAPPED), "resource already mapped"},
    {NAMED(CUDA_ERROR_CONTEXT_ALREADY_IN_USE),
     "exclusive-thread device already in use by a different thread"},
    {NAMED(CUDA_ERROR_UNSUPPORTED_LIMIT), "limit is not supported on this architecture"},
    {NAMED(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT), "invalid OpenGL or DirectX context"},
    {NAMED(CUDA_ERROR_INVALID_HANDLE), "invalid resource handle"},
    {NAMED(CUDA_ERROR_FILE_NOT_FOUND), "file not found"},
    {NAMED(CUDA_ERROR_OPERATING_SYSTEM), "OS call failed or operation not supported on this OS"},
    {NAMED(CUDA_ERROR_ILLEGAL_STATE), "the operation cannot be performed in the present state"},
    {NAMED(CUDA_ERROR_NOT_FOUND), "named symbol not found"},
    {NAMED(CUDA_ERROR_NOT_READY), "device not ready"},
    {NAMED(CUDA_ERROR_ILLEGAL_ADDRESS), "an illegal memory access was encountered"},
    {NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
     "part or all of the requested memory range is already mapped"},
    {NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
     "pointer does not correspond to a registered memory region"},
    {NAMED(CUDA_ERROR_MISALIGNED_ADDRESS), "misaligned address"},
    {NAMED(CUDA_ERROR_LAUNCH_FAILED), "unspecified launch failure"},
    {NAMED(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE), "cannot set while device is active in this process"},
    {NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED), "context is destroyed"},
    {NAMED(CUDA_ERROR_NOT_PERMITTED), "operation not permitted"},
    {NAMED(CUDA_ERROR_NOT_SUPPORTED), "operation not supported"},
    {NAMED(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
     "system has unsupported display driver / cuda driver combination"},
    {NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
     "operation not permitted when stream is capturing"},
    {NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
     "operation failed due to a previous error during capture"},
    {NAMED(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
     "capture was not ended in the same stream as it began"},
    {NAMED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE),
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
    {NAMED(CUDA_ERROR_UNKNOWN), "unknown error"},
};

static CUresult tell(CUresult error, const char **out, bool name)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].code == error) {
			*out = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	*out = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGetErrorName(CUresult error, const char **out)
{
	return tell(error, out, true);
}

CUDA_API CUresult cuGetErrorString(CUresult error, const char **out)
{
	return tell(error, out, false);
}

/* Private tables of the real driver: callers must work without them. */
CUDA_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	(void)id;
	if (table)
		*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
