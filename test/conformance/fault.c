/* SPDX-License-Identifier: Apache-2.0 */
/* A program accesses addresses without memory, or frees memory in use by running work. The context
 * is unusable afterwards, so each case has a process of its own. */
#include "conformance.h"

#include <sys/wait.h>
#include <unistd.h>

#define SIZE (64 * MiB)
#define LARGE (4 * GiB) /* surely still being filled when the call returns */

static const CUmemAllocationProp on_card = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

static void open_to_card(CUdeviceptr at, size_t size, int flags)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = flags};

	MUST(cuMemSetAccess(at, size, &access, 1));
}

static CUdeviceptr put(size_t reserved, size_t size)
{
	CUdeviceptr space;
	CUhandle handle;

	MUST(cuMemAddressReserve(&space, reserved, 0, 0, 0));
	MUST(cuMemCreate(&handle, size, &on_card, 0));
	MUST(cuMemMap(space, size, 0, handle, 0));
	return space;
}

/* Either call may return the error. */
static void fill(const char *key, CUdeviceptr at, size_t size)
{
	CUresult filled = cuMemsetD8_v2(at, 1, size), waited = cuCtxSynchronize();
	CUdeviceptr pointer;

	printf("%s: %s, then %s, and", key, name_of(filled), name_of(waited));
	printf(" an allocation %s\n", name_of(cuMemAlloc_v2(&pointer, MiB)));
}

static void reserved_only(void)
{
	CUdeviceptr space;

	MUST(cuMemAddressReserve(&space, SIZE, 0, 0, 0));
	fill("fill.reserved_only", space, SIZE);
}

static void not_accessible(void)
{
	fill("fill.no_access", put(SIZE, SIZE), SIZE);
}

static void read_only(void)
{
	CUdeviceptr space = put(SIZE, SIZE);

	open_to_card(space, SIZE, 1);
	fill("fill.read_only", space, SIZE);
}

static void half_mapped(void)
{
	CUdeviceptr space = put(2 * SIZE, SIZE);

	open_to_card(space, SIZE, 3);
	fill("fill.half_mapped", space, 2 * SIZE);
}

static void unmapped_below(void)
{
	CUdeviceptr space = put(LARGE, LARGE);

	open_to_card(space, LARGE, 3);
	MUST(cuMemsetD8_v2(space, 1, LARGE));
	say_result("unmap_below_a_fill", cuMemUnmap(space, LARGE));
	say_result("unmap_below_a_fill.wait", cuCtxSynchronize());
}

int main(void)
{
	static void (*const cases[])(void) = {reserved_only, not_accessible, read_only, half_mapped,
	                                      unmapped_below};

	for (size_t i = 0; i < COUNT(cases); i++) {
		pid_t pid = fork();

		if (pid == -1)
			stop("fork failed");
		if (pid == 0) {
			start_with_context();
			cases[i]();
			_exit(0);
		}
		if (waitpid(pid, NULL, 0) != pid)
			stop("waitpid failed");
	}
	return 0;
}
