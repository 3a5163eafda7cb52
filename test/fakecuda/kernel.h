/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of PTX are carried out (ptx.h), but not those in graphs; others do nothing. What the
 * driver takes for one when it is launched depends on its frame, and on its name.
 */
#ifndef FAKECUDA_KERNEL_H
#define FAKECUDA_KERNEL_H

#include "driver.h"

/* What a launch is given: a module's function, or a library's kernel. */
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
	bool uses_printf;              /* "printf" is: it wants the FIFO */
};

/* The function that a handle stands for; a kernel's is loaded into the context if it has to be. */
CUresult kernel_function(CUcontext context, CUfunction handle, CUfunction *out);
/* In whose local memory it runs. */
CUcontext kernel_context(const struct CUfunc_st *function);
/* What a graph does for a node: its stack is there since it was instantiated. */
CUresult kernel_run(CUcontext context, const struct CUfunc_st *function);

#endif
