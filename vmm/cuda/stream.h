/* SPDX-License-Identifier: Apache-2.0 */
/* Work on one stream: memory, code, launches, copies. */
#ifndef GPUSLICE_VMM_CUDA_STREAM_H
#define GPUSLICE_VMM_CUDA_STREAM_H

#include "native.h"

typedef struct CUfunc_st *stream_function;

/* Once in a process, after native_load. NULL, or what was missing. */
const char *stream_load(char *message, size_t size);

struct outcome stream_open(CUcontext context, CUstream *stream);

struct outcome stream_alloc(CUcontext context, CUdeviceptr *start, size_t bytes);
struct outcome stream_free(CUcontext context, CUdeviceptr start);
struct outcome stream_write(CUcontext context, CUstream stream, CUdeviceptr to, const void *from,
                            size_t bytes);
struct outcome stream_read(CUcontext context, CUstream stream, void *to, CUdeviceptr from,
                           size_t bytes);
struct outcome stream_set(CUcontext context, CUstream stream, CUdeviceptr start,
                          unsigned char value, size_t bytes);
struct outcome stream_copy(CUcontext context, CUstream stream, CUdeviceptr to, CUdeviceptr from,
                           size_t bytes);
struct outcome stream_sync(CUcontext context, CUstream stream);

/* `image` is followed by a zero. The logs get the compiler's words. */
struct outcome stream_load_module(CUcontext context, CUmodule *module, const void *image,
                                  char *errors, size_t errors_size, char *infos, size_t infos_size);
struct outcome stream_unload_module(CUcontext context, CUmodule module);
struct outcome stream_find(CUcontext context, CUmodule module, const char *name,
                           stream_function *function);
struct outcome stream_variable(CUcontext context, CUmodule module, const char *name,
                               CUdeviceptr *start, size_t *bytes);
struct outcome stream_attribute(CUcontext context, stream_function function, int attribute,
                                int *value);
struct outcome stream_set_attribute(CUcontext context, stream_function function, int attribute,
                                    int value);
/* CUDA_ERROR_INVALID_VALUE: there is no such parameter; CUDA_ERROR_NOT_SUPPORTED: the driver cannot
 * say. */
struct outcome stream_parameter(CUcontext context, stream_function function, size_t index,
                                size_t *offset, size_t *bytes);
/* grid_x, grid_y, grid_z, block_x, block_y, block_z, shared bytes. Parameter i is at values +
 * offsets[i]. */
struct outcome stream_launch(CUcontext context, CUstream stream, stream_function function,
                             const unsigned int *shape, char *values, const uint32_t *offsets,
                             size_t count);

struct outcome stream_pin(CUcontext context, void *start, size_t bytes);
struct outcome stream_unpin(CUcontext context, void *start);

#endif
