/* SPDX-License-Identifier: Apache-2.0 */
/* Images without a context, which become modules of the contexts that use them. */
#ifndef FAKECUDA_LIBRARY_H
#define FAKECUDA_LIBRARY_H

#include "driver.h"
#include "kernel.h"

struct CUkern_st {
	enum launchable what; /* as in CUfunc_st */
	CUkernel next;        /* of its library */
	CUlibrary library;
	char *name;
	uint64_t frame;
	const struct ptx_kernel *code; /* as CUfunc_st has it */
};

/* The value of CUDA_MODULE_LOADING at its first use. */
bool library_is_eager(void);
/* For a module that is destroyed with its context or the library. */
void library_forget(CUlibrary library, CUmodule module);
/* The kernel in a context. The library is loaded there if necessary. */
CUresult library_function(CUcontext context, CUkernel kernel, CUfunction *out);

#endif
