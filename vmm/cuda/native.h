/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions, found at run time, and sequences of them that are one call from Go. Each
 * call that needs a context makes it current and restores the previous one, so it does not matter
 * which thread Go calls on.
 */
#ifndef GPUSLICE_VMM_CUDA_NATIVE_H
#define GPUSLICE_VMM_CUDA_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#include "../../interceptor/cuda_abi.h"

/* A call's outcome: the failed function and its result, and the number of completed pieces. */
struct outcome {
	CUresult result;
	const char *function;
	size_t done;
	CUresult undo; /* failure to undo the completed part; 0 if none */
};

/* Makes a context current in this thread; native_leave() restores the previous one. */
struct outcome native_enter(CUcontext context);
struct outcome native_leave(struct outcome outcome);

/* Once in a process. Returns NULL, or the missing function's text in `message`. */
const char *native_load(char *message, size_t size);

struct outcome native_init(void);
struct outcome native_count(int *count);
struct outcome native_open(int ordinal, CUcontext *context);
struct outcome native_close(int ordinal);
struct outcome native_attribute(int ordinal, int attribute, int *value);
struct outcome native_name(int ordinal, char *name, int size);
struct outcome native_granularity(int ordinal, int option, size_t *bytes);
struct outcome native_memory_info(CUcontext context, size_t *available, size_t *total);

struct outcome native_reserve(CUcontext context, size_t bytes, CUdeviceptr *start);
struct outcome native_free(CUcontext context, CUdeviceptr start, size_t bytes);

/* Pieces of `bytes` each; `done` of them exist if there was no room for more. */
struct outcome native_create(CUcontext context, int ordinal, size_t bytes,
                             CUmemGenericAllocationHandle *handles, size_t count);
/* Continues after a failure, and returns the first one. */
struct outcome native_release(CUcontext context, const CUmemGenericAllocationHandle *handles,
                              size_t count);
/* Maps the pieces one after another from `start`, with access for the device; all or none. */
struct outcome native_map(CUcontext context, int ordinal, CUdeviceptr start, size_t bytes,
                          const CUmemGenericAllocationHandle *handles, size_t count, int access);
struct outcome native_access(CUcontext context, int ordinal, CUdeviceptr start, size_t bytes,
                             int access);
struct outcome native_unmap(CUcontext context, CUdeviceptr start, size_t bytes);

struct outcome native_write(CUcontext context, CUdeviceptr to, const void *from, size_t bytes);
struct outcome native_read(CUcontext context, void *to, CUdeviceptr from, size_t bytes);

#define CALL(name, arguments) ((struct outcome){.result = driver.name arguments, .function = #name})

/* A call in a context; the one that was current before is current again. */
#define CALL_IN(context, name, arguments)                                                          \
	do {                                                                                       \
		struct outcome entered = native_enter(context);                                    \
		return entered.result != CUDA_SUCCESS ? entered                                    \
		                                      : native_leave(CALL(name, arguments));       \
	} while (0)

const char *native_result_name(CUresult result);
const char *native_result_text(CUresult result);

#endif
