/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels do nothing; what the driver does for one when it is launched depends on its name. */
#ifndef FAKECUDA_KERNEL_H
#define FAKECUDA_KERNEL_H

#include "driver.h"

struct CUfunc_st {
	bool uses_malloc; /* "malloc" is in its name: it wants the heap */
	bool uses_printf; /* "printf" is: it wants the FIFO */
};

CUresult kernel_run(CUcontext context, const struct CUfunc_st *function);

#endif
