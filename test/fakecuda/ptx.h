/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of PTX text, carried out one thread after another on the simulation's memory. Supported
 * is what tests and examples need: loads and stores of all spaces except constants, integers of up
 * to 64 bits, f32 and f64, predicates, branches, atomics, shared memory and barriers. Other
 * instructions make the load of their module fail, with their name in the log.
 *
 * Functions outside the text (malloc, free, vprintf) may be called; they do nothing and return 0.
 * Fused multiply-adds are rounded twice.
 */
#ifndef FAKECUDA_PTX_H
#define FAKECUDA_PTX_H

#include "image.h"
#include "jit.h"

/* The PTX of an image, and one kernel of it. */
struct ptx;
struct ptx_kernel;
/* One launch. */
struct ptx_run;

/*
 * `arrays` are the image's. Fails with INVALID_PTX and similar errors, or NOT_SUPPORTED for an
 * instruction that is not supported, with the reason in the log.
 */
CUresult ptx_read(const char *text, const struct symbols *arrays, struct jit_log *log,
                  struct ptx **out);
void ptx_free(struct ptx *ptx);
/* Writes the arrays' initial values to their memory at `to`. */
void ptx_fill_arrays(const struct ptx *ptx, char *to);
bool ptx_has_array_values(const struct ptx *ptx);

/* NULL if there is no such kernel. */
const struct ptx_kernel *ptx_find(const struct ptx *ptx, const char *name);
/* False if there is no such parameter. */
bool ptx_parameter(const struct ptx_kernel *kernel, size_t index, size_t *offset, size_t *size);
/* The size of all parameters. */
size_t ptx_parameter_bytes(const struct ptx_kernel *kernel);
size_t ptx_shared_bytes(const struct ptx_kernel *kernel);
/* True if a run could have a visible effect. */
bool ptx_does_something(const struct ptx_kernel *kernel);
bool ptx_uses_arrays(const struct ptx_kernel *kernel);

/*
 * Prepares a launch; NULL if there is no memory. It copies the parameters, and the image must stay
 * until it is freed. `arrays` is the address of the module's arrays.
 */
struct ptx_run *ptx_start(const struct ptx_kernel *kernel, CUcontext context,
                          const CUlaunchConfig *config, const void *parameters, CUdeviceptr arrays);
void ptx_end(struct ptx_run *run);
/* Runs up to that many instructions. Returns NOT_READY, SUCCESS at its end, or its fault. */
CUresult ptx_step(struct ptx_run *run, uint64_t instructions);

#endif
