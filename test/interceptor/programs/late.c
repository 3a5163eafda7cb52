/* SPDX-License-Identifier: Apache-2.0 */
/* The library that elastic.c opens, linked with the driver. */
#include "cuda_abi.h"

CUresult cuTexRefSetMipmapLevelClamp(void *, float, float);
CUresult call(void);

CUresult call(void)
{
	return cuTexRefSetMipmapLevelClamp((void *)3, 1.5f, -2.25f);
}
