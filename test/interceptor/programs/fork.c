/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of an attached process is a process of its own: its memory after exec is charged to it
 * and released at its exit, while its parent's stays. Runs itself as the child. Exits 0 if so. With
 * OLD_KERNEL in the environment the kernel cannot wipe memory at fork.
 */
#include "driver.h"

#include "charged.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Replaces the C library's. */
int madvise(void *address, size_t bytes, int advice)
{
	if (advice == 18 /* MADV_WIPEONFORK */ && getenv("OLD_KERNEL")) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, address, bytes, advice);
}

int main(int argc, char **argv)
{
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr mine, small, range, ordered, child_address;
	size_t before, during, total;
	int to_parent[2], to_child[2], status;
	char c;
	pid_t pid;

	if (argc > 1 && strcmp(argv[1], "exec") == 0) {
		use_primary();
		MUST(cuMemAlloc_v2(&mine, 500 * MIB));
		return write(4, "x", 1) == 1 && read(3, &c, 1) == 1 ? 0 : 1;
	}
	use_primary();
	if (cuMemAlloc_v2(&mine, 600 * MIB) || cuMemAlloc_v2(&small, 1) ||
	    cuMemAlloc_v2(&small, 1) || cuMemAddressReserve(&range, 4 * MIB, 0, 0, 0) ||
	    cuMemCreate(&handle, 2 * MIB, &properties, 0) ||
	    cuMemMap(range, 2 * MIB, 0, handle, 0) || cuMemAllocAsync(&ordered, MIB, NULL))
		return 1;
	before = left();

	/* Without exec the driver refuses, and the interceptor neither crashes nor changes the
	 * parent's charges. */
	pid = fork();
	if (pid == 0) {
		bool any = cuMemAlloc_v2(&child_address, MIB) == CUDA_SUCCESS;

		any |= cuMemMap(range + 2 * MIB, 2 * MIB, 0, handle, 0) == CUDA_SUCCESS;
		any |= cuMemAllocAsync(&child_address, MIB, NULL) == CUDA_SUCCESS;
		(void)cuMemFree_v2(mine);
		(void)cuMemFreeAsync(ordered, NULL);
		(void)cuMemUnmap(range, 2 * MIB);
		(void)cuMemRelease(handle);
		(void)cuDeviceTotalMem_v2(&total, 0);
		_exit(any);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0) {
		printf("a forked child was given memory, or died: status %d\n", status);
		return 1;
	}
	if (left() != before) {
		printf("a forked child changed what its parent holds by %lld\n",
		       (long long)before - (long long)left());
		return 1;
	}

	if (pipe(to_parent) || pipe(to_child))
		return 1;
	pid = fork();
	if (pid == 0) {
		int in = dup(to_child[0]), out = dup(to_parent[1]);

		dup2(in, 3);
		dup2(out, 4);
		execl("/proc/self/exe", argv[0], "exec", (char *)NULL);
		_exit(127);
	}
	close(to_parent[1]);
	if (read(to_parent[0], &c, 1) != 1) {
		printf("the child did not start\n");
		return 1;
	}
	during = left();
	if (before - during < 500 * MIB) {
		printf("the child's memory is not counted\n");
		return 1;
	}
	if (write(to_child[1], "x", 1) != 1 || waitpid(pid, &status, 0) != pid || status != 0)
		return 1;
	if (!left_becomes(before)) {
		printf("the child's memory did not come back\n");
		return 1;
	}
	if (cuMemUnmap(range, 2 * MIB) || cuMemRelease(handle) || left() != before + 2 * MIB) {
		printf("mapped memory did not come back: %zu bytes are left of %zu\n", left(),
		       before + (size_t)(2 * MIB));
		return 1;
	}
	return cuMemFree_v2(mine) != CUDA_SUCCESS;
}
