/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of PTX text, carried out one thread after another on the memory that the simulation
 * keeps. It is enough of PTX for what tests and examples need: loads and stores of all spaces but
 * constants, integers of up to 64 bits, f32 and f64, predicates, branches, atomics, shared memory
 * and barriers. Another instruction is refused when its module is loaded, and named in the log.
 *
 * Functions outside the text (malloc, free, vprintf) may be called; they do nothing and return 0.
 * Fused multiply-adds are rounded twice.
 */
#ifndef FAKECUDA_PTX_H
#define FAKECUDA_PTX_H

#include "image.h"
#include "jit.h"

/* What the PTX of an image says; and one kernel of it. */
struct ptx;
struct ptx_kernel;
/* One launch. */
struct ptx_run;

/*
 * `arrays` are the image's. INVALID_PTX and the like with the reason in the log; of text that has
 * an instruction that is not carried out, NOT_SUPPORTED.
 */
CUresult ptx_read(const char *text, const struct symbols *arrays, struct jit_log *log,
                  struct ptx **out);
void ptx_free(struct ptx *ptx);
/* Writes what the text says is in the arrays from the beginning to their memory at `to`. */
void ptx_fill_arrays(const struct ptx *ptx, char *to);
bool ptx_has_array_values(const struct ptx *ptx);

/* NULL: it has none of that name. */
const struct ptx_kernel *ptx_find(const struct ptx *ptx, const char *name);
/* False: there is no such parameter. */
bool ptx_parameter(const struct ptx_kernel *kernel, size_t index, size_t *offset, size_t *size);
/* What all parameters take together. */
size_t ptx_parameter_bytes(const struct ptx_kernel *kernel);
size_t ptx_shared_bytes(const struct ptx_kernel *kernel);
/* Whether anybody could see that it ran. */
bool ptx_does_something(const struct ptx_kernel *kernel);
bool ptx_uses_arrays(const struct ptx_kernel *kernel);

/*
 * A launch that is to begin; NULL: no memory. It has a copy of the parameters, and the image must
 * stay until it is freed. `arrays` is where the module's are.
 */
struct ptx_run *ptx_start(const struct ptx_kernel *kernel, CUcontext context,
                          const CUlaunchConfig *config, const void *parameters, CUdeviceptr arrays);
void ptx_end(struct ptx_run *run);
/* Goes on for up to so many instructions: NOT_READY, SUCCESS at its end, or what it did wrong. */
CUresult ptx_step(struct ptx_run *run, uint64_t instructions);

#endif
