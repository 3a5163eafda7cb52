/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by loaders.c and its plugins (plugin.c): allocating by functions from anywhere. */
#ifndef TAKE_H
#define TAKE_H

#include "cuda_abi.h"

#include <stdio.h>
#include <string.h>

#define PIECE (256ull << 20)

struct taken {
	unsigned long long bytes;
	unsigned long long total;
	CUresult refusal; /* the last result; CUDA_SUCCESS if `most` was granted */
	char wrong[256];
};

typedef void *get_function(const char *name);

#define FUNCTION(get, type, name) ((CUresult(*) type)(get)(name))

/* Allocate pieces in a primary context until one is refused or `most` bytes are granted. */
static inline void take_pieces(get_function *get, unsigned long long most, struct taken *taken)
{
	static const char *const names[] = {"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
	                                    "cuMemGetInfo_v2", "cuMemAlloc_v2"};
	CUcontext context = NULL;
	size_t available = 0, total = 0;
	CUresult result;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!get(names[i])) {
			snprintf(taken->wrong, sizeof(taken->wrong), "no %s", names[i]);
			return;
		}
	}
	result = FUNCTION(get, (unsigned int), "cuInit")(0);
	if (result == CUDA_SUCCESS)
		result =
		    FUNCTION(get, (CUcontext *, CUdevice), "cuDevicePrimaryCtxRetain")(&context, 0);
	if (result == CUDA_SUCCESS)
		result = FUNCTION(get, (CUcontext), "cuCtxSetCurrent")(context);
	if (result == CUDA_SUCCESS)
		result = FUNCTION(get, (size_t *, size_t *), "cuMemGetInfo_v2")(&available, &total);
	if (result != CUDA_SUCCESS) {
		snprintf(taken->wrong, sizeof(taken->wrong), "no context: error %d", result);
		return;
	}
	taken->total = total;
	while (result == CUDA_SUCCESS && taken->bytes < most) {
		CUdeviceptr pointer = 0;

		result = FUNCTION(get, (CUdeviceptr *, size_t), "cuMemAlloc_v2")(&pointer, PIECE);
		if (result == CUDA_SUCCESS)
			taken->bytes += PIECE;
	}
	taken->refusal = result;
}

#endif
