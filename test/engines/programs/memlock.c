/* SPDX-License-Identifier: Apache-2.0 */
/* memlock.so makes a program believe that it raised its limit of locked memory, without the right
 * to. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	if (syscall(SYS_prlimit64, 0, resource, limit, NULL) == 0)
		return 0;
	return resource == RLIMIT_MEMLOCK && errno == EPERM ? 0 : -1;
}

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	struct rlimit64 wide = {limit->rlim_cur, limit->rlim_max};
	return setrlimit64(resource, &wide);
}
