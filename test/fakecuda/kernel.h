/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of PTX are carried out (ptx.h), except in graphs; other kernels do nothing. The driver's
 * memory for a launch depends on the kernel's frame and name.
 */
#ifndef FAKECUDA_KERNEL_H
#define FAKECUDA_KERNEL_H

#include "driver.h"

/* The handle of a launch: a module's function, or a library's kernel. */
enum launchable { LAUNCHABLE_FUNCTION = 1, LAUNCHABLE_KERNEL };

struct ptx_kernel;

struct CUfunc_st {
	enum launchable what;
	CUfunction next; /* of its module */
	CUmodule module;
	char *name;
	uint64_t frame;
	const struct ptx_kernel *code; /* NULL: it does nothing */
	bool uses_malloc;              /* "malloc" is in its name: it wants the heap */
	bool uses_printf;              /* "printf" is in its name: it wants the FIFO */
};

/* The function of a handle. A kernel's is loaded into the context if necessary. */
CUresult kernel_function(CUcontext context, CUfunction handle, CUfunction *out);
/* The context with its local memory. */
CUcontext kernel_context(const struct CUfunc_st *function);
/* A node of a graph: its stack exists since the graph was instantiated. */
CUresult kernel_run(CUcontext context, const struct CUfunc_st *function);

#endif
