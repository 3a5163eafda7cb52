/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changer: holds 1 MiB of VRAM of device 0. From SIGUSR1 on it holds 2 MiB more each 0.9 seconds,
 * up to 20 times, and then 1 MiB again.
 */
#include "driver.h"

#include "charged.h"

#include <signal.h>

#define TIMES 20

int main(void)
{
	CUdeviceptr first, more[TIMES];
	sigset_t begin;
	int caught;

	sigemptyset(&begin);
	sigaddset(&begin, SIGUSR1);
	sigprocmask(SIG_BLOCK, &begin, NULL);
	use_primary();
	MUST(cuMemAlloc_v2(&first, MIB));
	if (sigwait(&begin, &caught))
		return 1;
	for (int i = 0;; i = (i + 1) % TIMES) {
		usleep(900000);
		MUST(cuMemAlloc_v2(&more[i], 2 * MIB));
		for (int k = 0; i == TIMES - 1 && k < TIMES; k++)
			MUST(cuMemFree_v2(more[k]));
	}
}
