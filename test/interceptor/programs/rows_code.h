/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the rows of modules and of stacks. */
#ifndef ROWS_CODE_H
#define ROWS_CODE_H

#include "rows.h"

#include "code.h"

/* For the code itself, and for the remainders of blocks of 2 MiB. */
#define SLACK (16 * (long long)MIB)

/* The row is charged `bytes`, give or take SLACK. */
static inline void expect_charge(const char *step, long long bytes)
{
	charged_beside(step, bytes, SLACK);
}

static inline CUmodule load(const char *text)
{
	CUmodule module = NULL;

	OK(cuModuleLoadData(&module, text));
	return module;
}

static inline CUlibrary library_of(const char *text)
{
	CUlibrary library = NULL;

	OK(OPTIONAL(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
	return library;
}

static inline CUresult launch(CUfunction function)
{
	CUresult result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);

	if (result == CUDA_SUCCESS)
		result = cuCtxSynchronize();
	return result;
}

#endif
