/* SPDX-License-Identifier: Apache-2.0 */
#include "digest.h"

#include "block.h"
#include "digest_ptx.h"
#include "entry.h"
#include "pages.h"
#include "stream.h"

#include <string.h>

#define REGISTER_PORTABLE_MAPPED 3u

static bool load(struct digests *digests)
{
	CUlibrary library;

	return digests->kernel ||
	       (DRIVER_HAS(cuLibraryLoadData) && DRIVER_HAS(cuLibraryGetKernel) &&
	        BEHIND(cuLibraryLoadData)(&library, digest_ptx, NULL, NULL, 0, NULL, NULL, 0) ==
	            CUDA_SUCCESS &&
	        BEHIND(cuLibraryGetKernel)(&digests->kernel, library, DIGEST_KERNEL) ==
	            CUDA_SUCCESS);
}

static bool reserve(struct digests *digests, size_t most)
{
	void *memory;

	if (digests->room)
		return true;
	memory = pages_map(2 * most * sizeof(struct digest));
	if (!memory)
		return false;
	/* A fork would copy pinned memory at once. */
	(void)madvise(memory, 2 * most * sizeof(struct digest), MADV_DONTFORK);
	digests->now = memory;
	digests->kept = digests->now + most;
	digests->room = most;
	return true;
}

bool digest_open(struct digests *digests, size_t blocks, size_t most)
{
	size_t bytes = blocks * sizeof(struct digest);

	digests->results = 0;
	if (!reserve(digests, most) || blocks > digests->room || !load(digests) ||
	    BEHIND(cuMemHostRegister_v2)(digests->now, bytes, REGISTER_PORTABLE_MAPPED) !=
	        CUDA_SUCCESS)
		return false;
	if (BEHIND(cuMemHostGetDevicePointer_v2)(&digests->results, digests->now, 0) ==
	    CUDA_SUCCESS)
		return true;
	digest_close(digests, false);
	return false;
}

bool digest_begin(const struct digests *digests, CUdeviceptr pointer, size_t first, size_t blocks)
{
	CUdeviceptr to = digests->results + first * sizeof(struct digest);
	void *parameters[] = {&pointer, &to};

	return BEHIND(cuLaunchKernel)((CUfunction)digests->kernel, (unsigned)blocks, 1, 1,
	                              DIGEST_THREADS, 1, 1, 0, STREAM_OWN, parameters,
	                              NULL) == CUDA_SUCCESS;
}

void digest_close(struct digests *digests, bool well)
{
	(void)BEHIND(cuMemHostUnregister)(digests->now);
	digests->results = 0;
	if (!well)
		digest_forget(digests);
}

void digest_forget(struct digests *digests)
{
	if (digests->room)
		memset(digests->now, 0, digests->room * sizeof(struct digest));
}

void digest_keep(struct digests *digests, size_t first, size_t end)
{
	for (size_t i = first; digests->room && i < end; i++)
		if (digest_known(&digests->now[i]))
			digests->kept[i] = digests->now[i];
}

void digest_lose(struct digests *digests, size_t first)
{
	if (first < digests->room)
		memset(digests->kept + first, 0, (digests->room - first) * sizeof(struct digest));
}
