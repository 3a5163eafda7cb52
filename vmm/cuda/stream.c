/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <dlfcn.h>
#include <stdio.h>

#define FUNCTIONS(F)                                                                               \
	F(cuStreamCreate, (CUstream *, unsigned int))                                              \
	F(cuStreamSynchronize, (CUstream))                                                         \
	F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                  \
	F(cuMemFree_v2, (CUdeviceptr))                                                             \
	F(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                     \
	F(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                           \
	F(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                      \
	F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                         \
	F(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned int, int *, void **))            \
	F(cuModuleUnload, (CUmodule))                                                              \
	F(cuModuleGetFunction, (stream_function *, CUmodule, const char *))                        \
	F(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                 \
	F(cuFuncGetAttribute, (int *, int, stream_function))                                       \
	F(cuFuncSetAttribute, (stream_function, int, int))                                         \
	F(cuLaunchKernel,                                                                          \
	  (stream_function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,  \
	   unsigned int, unsigned int, CUstream, void **, void **))

/* Some drivers lack them. */
#define OPTIONAL(F)                                                                                \
	F(cuFuncGetParamInfo, (stream_function, size_t, size_t *, size_t *))                       \
	F(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                    \
	F(cuMemHostUnregister, (void *))

enum {
	NON_BLOCKING = 1,
	HOST_REGISTER_PORTABLE = 1,
	JIT_INFO_LOG_BUFFER = 3,
	JIT_INFO_LOG_BUFFER_SIZE_BYTES = 4,
	JIT_ERROR_LOG_BUFFER = 5,
	JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
	MAX_PARAMETERS = 4096,
};

#define DECLARE(name, parameters) CUresult(*name) parameters;
static struct {
	FUNCTIONS(DECLARE)
	OPTIONAL(DECLARE)
} driver;

const char *stream_load(char *message, size_t size)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		snprintf(message, size, "libcuda.so.1 cannot be opened");
		return message;
	}
#define FIND(name, parameters) *(void **)&driver.name = dlsym(library, #name);
#define NEED(name, parameters)                                                                     \
	FIND(name, parameters)                                                                     \
	if (!driver.name) {                                                                        \
		snprintf(message, size, "libcuda.so.1 has no " #name);                             \
		return message;                                                                    \
	}
	FUNCTIONS(NEED)
	OPTIONAL(FIND)
	return NULL;
}

struct outcome stream_open(CUcontext context, CUstream *stream)
{
	CALL_IN(context, cuStreamCreate, (stream, NON_BLOCKING));
}

struct outcome stream_alloc(CUcontext context, CUdeviceptr *start, size_t bytes)
{
	CALL_IN(context, cuMemAlloc_v2, (start, bytes));
}

struct outcome stream_free(CUcontext context, CUdeviceptr start)
{
	CALL_IN(context, cuMemFree_v2, (start));
}

struct outcome stream_write(CUcontext context, CUstream stream, CUdeviceptr to, const void *from,
                            size_t bytes)
{
	CALL_IN(context, cuMemcpyHtoDAsync_v2, (to, from, bytes, stream));
}

struct outcome stream_read(CUcontext context, CUstream stream, void *to, CUdeviceptr from,
                           size_t bytes)
{
	CALL_IN(context, cuMemcpyDtoHAsync_v2, (to, from, bytes, stream));
}

struct outcome stream_set(CUcontext context, CUstream stream, CUdeviceptr start,
                          unsigned char value, size_t bytes)
{
	CALL_IN(context, cuMemsetD8Async, (start, value, bytes, stream));
}

struct outcome stream_copy(CUcontext context, CUstream stream, CUdeviceptr to, CUdeviceptr from,
                           size_t bytes)
{
	CALL_IN(context, cuMemcpyDtoDAsync_v2, (to, from, bytes, stream));
}

struct outcome stream_sync(CUcontext context, CUstream stream)
{
	CALL_IN(context, cuStreamSynchronize, (stream));
}

struct outcome stream_load_module(CUcontext context, CUmodule *module, const void *image,
                                  char *errors, size_t errors_size, char *infos, size_t infos_size)
{
	int options[] = {JIT_INFO_LOG_BUFFER, JIT_INFO_LOG_BUFFER_SIZE_BYTES, JIT_ERROR_LOG_BUFFER,
	                 JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {infos, (void *)(uintptr_t)infos_size, errors,
	                  (void *)(uintptr_t)errors_size};

	CALL_IN(context, cuModuleLoadDataEx, (module, image, 4, options, values));
}

struct outcome stream_unload_module(CUcontext context, CUmodule module)
{
	CALL_IN(context, cuModuleUnload, (module));
}

struct outcome stream_find(CUcontext context, CUmodule module, const char *name,
                           stream_function *function)
{
	CALL_IN(context, cuModuleGetFunction, (function, module, name));
}

struct outcome stream_variable(CUcontext context, CUmodule module, const char *name,
                               CUdeviceptr *start, size_t *bytes)
{
	CALL_IN(context, cuModuleGetGlobal_v2, (start, bytes, module, name));
}

struct outcome stream_attribute(CUcontext context, stream_function function, int attribute,
                                int *value)
{
	CALL_IN(context, cuFuncGetAttribute, (value, attribute, function));
}

struct outcome stream_set_attribute(CUcontext context, stream_function function, int attribute,
                                    int value)
{
	CALL_IN(context, cuFuncSetAttribute, (function, attribute, value));
}

struct outcome stream_parameter(CUcontext context, stream_function function, size_t index,
                                size_t *offset, size_t *bytes)
{
	if (!driver.cuFuncGetParamInfo)
		return (struct outcome){.result = CUDA_ERROR_NOT_SUPPORTED,
		                        .function = "cuFuncGetParamInfo"};
	CALL_IN(context, cuFuncGetParamInfo, (function, index, offset, bytes));
}

struct outcome stream_launch(CUcontext context, CUstream stream, stream_function function,
                             const unsigned int *shape, char *values, const uint32_t *offsets,
                             size_t count)
{
	void *parameters[MAX_PARAMETERS];

	if (count > MAX_PARAMETERS)
		return (struct outcome){.result = CUDA_ERROR_INVALID_VALUE,
		                        .function = "cuLaunchKernel"};
	for (size_t i = 0; i < count; i++)
		parameters[i] = values + offsets[i];
	CALL_IN(context, cuLaunchKernel,
	        (function, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6],
	         stream, parameters, NULL));
}

/* A driver that cannot pin memory copies from it all the same. */
struct outcome stream_pin(CUcontext context, void *start, size_t bytes)
{
	if (!driver.cuMemHostRegister_v2)
		return (struct outcome){.result = CUDA_SUCCESS};
	CALL_IN(context, cuMemHostRegister_v2, (start, bytes, HOST_REGISTER_PORTABLE));
}

struct outcome stream_unpin(CUcontext context, void *start)
{
	if (!driver.cuMemHostUnregister)
		return (struct outcome){.result = CUDA_SUCCESS};
	CALL_IN(context, cuMemHostUnregister, (start));
}
