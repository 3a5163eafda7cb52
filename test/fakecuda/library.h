/* SPDX-License-Identifier: Apache-2.0 */
/* Images that belong to no context, and become modules of those in which they are used. */
#ifndef FAKECUDA_LIBRARY_H
#define FAKECUDA_LIBRARY_H

#include "driver.h"
#include "kernel.h"

struct CUkern_st {
	enum launchable what; /* where CUfunc_st has it */
	CUkernel next;        /* of its library */
	CUlibrary library;
	char *name;
	uint64_t frame;
	const struct ptx_kernel *code; /* as CUfunc_st has it */
};

/* What CUDA_MODULE_LOADING said when it was first asked for. */
bool library_is_eager(void);
/* For a module that goes, with its context or with the library. */
void library_forget(CUlibrary library, CUmodule module);
/* The kernel in a context: the library is loaded there if it is not. */
CUresult library_function(CUcontext context, CUkernel kernel, CUfunction *out);

#endif
