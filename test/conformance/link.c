/* SPDX-License-Identifier: Apache-2.0 */
/* The third way to the driver's functions: linked with libcuda, without dlopen or dlsym. The
 * program names them as CUDA's header does, with the version in the symbol. */
#include "../../interceptor/cuda_abi.h"

#include <stdio.h>

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);

static void say(const char *key, CUresult result)
{
	const char *name = "(no name)";

	cuGetErrorName(result, &name);
	printf("%s: %s\n", key, name);
}

static size_t used(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return total - available;
}

int main(void)
{
	CUcontext context = NULL;
	CUdeviceptr pointer = 0;
	size_t before;

	say("cuInit", cuInit(0));
	say("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
	say("cuCtxSetCurrent", cuCtxSetCurrent(context));
	before = used();
	say("cuMemAlloc_v2", cuMemAlloc_v2(&pointer, (size_t)1 << 30));
	printf("used: %zu\n", used() - before);
	say("cuMemFree_v2", cuMemFree_v2(pointer));
	printf("left: %zu\n", used() - before);
	say("cuMemAllocAsync", cuMemAllocAsync(&pointer, 4096, NULL));
	say("cuMemFreeAsync", cuMemFreeAsync(pointer, NULL));
	return 0;
}
