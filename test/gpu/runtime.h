// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <stddef.h>

#define ARRAY_BYTES ((size_t)256 << 20)

// Code of a file of its own, which is loaded apart from the others', and has an array.
cudaError_t use_array(void);
