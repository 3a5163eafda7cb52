/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the place of runtime.cu, which needs a CUDA compiler: the first of its kinds only. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static const size_t size = (size_t)512 << 20;

static int within(void)
{
	size_t before, after, again, total;
	void *p;

	return cudaMemGetInfo(&before, &total) || cudaMalloc(&p, size) ||
	       cudaMemGetInfo(&after, &total) || before - after != size || cudaFree(p) ||
	       cudaMemGetInfo(&again, &total) || again != before;
}

static int beyond(void)
{
	size_t available, total;
	void *p;

	return cudaMemGetInfo(&available, &total) ||
	       cudaMalloc(&p, available + size) != cudaErrorMemoryAllocation ||
	       cudaMalloc(&p, size / 8) || cudaFree(p);
}

int main(int argc, char **argv)
{
	int wrong;

	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		printf("malloc\n");
		return 0;
	}
	if (argc != 3)
		return 64;
	wrong = strcmp(argv[2], "within") == 0 ? within() : beyond();
	printf("%s %s %s\n", wrong ? "FAIL" : "PASS", argv[1], argv[2]);
	return wrong;
}
