/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc from C, linked with libcuda: the reference for all other cases. phases.h has the
 * phases. */
#include "cuda_abi.h"
#include "phases.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CHUNK ((size_t)256 << 20)
#define MOST 1024 /* chunks: more than any card has */

CUresult cuInit(unsigned int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);

/* Checks that a chunk can be written and read back; frees it if keep is NULL. */
static const char *compute(CUdeviceptr *keep)
{
	uint32_t there[1024], back[1024] = {0};
	CUdeviceptr pointer;
	const char *name = "unknown";
	CUresult error = cuMemAlloc_v2(&pointer, CHUNK);

	for (uint32_t i = 0; i < 1024; i++)
		there[i] = i * 2654435761u;
	if (!error)
		error = cuMemcpyHtoD_v2(pointer, there, sizeof(there));
	if (!error)
		error = cuMemcpyDtoH_v2(back, pointer, sizeof(back));
	if (error) {
		cuGetErrorName(error, &name);
		return name;
	}
	if (keep)
		*keep = pointer;
	else
		cuMemFree_v2(pointer);
	return memcmp(there, back, sizeof(there)) == 0 ? "ok" : "wrong";
}

int main(int argc, char **argv)
{
	static CUdeviceptr taken[MOST];
	size_t available = 0, total = 0, count = 0;
	bool beyond = argc > 1 && strcmp(argv[argc - 1], "beyond") == 0;
	const char *name = "none";
	CUcontext context;
	CUresult error = CUDA_SUCCESS;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) {
		printf("result=no device\n");
		return 1;
	}
	if (!beyond) {
		const char *result = compute(&taken[0]);

		cuMemGetInfo_v2(&available, &total);
		printf("phase=within\ntotal=%zu\nfree=%zu\nresult=%s\n", total, available, result);
		rest("within");
		return 0;
	}
	while (count < MOST && (error = cuMemAlloc_v2(&taken[count], CHUNK)) == CUDA_SUCCESS)
		count++;
	if (error)
		cuGetErrorName(error, &name);
	printf("phase=beyond\noom=%s\n", name);
	rest("beyond");
	while (count > 0)
		cuMemFree_v2(taken[--count]);
	printf("phase=after\nafter=%s\n", compute(NULL));
	rest("after");
	return 0;
}
