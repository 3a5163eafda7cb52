/* SPDX-License-Identifier: Apache-2.0 */
#include "recheck.h"

#include "quiet.h"
#include "state.h"
#include "threads.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PACE 1 /* seconds between two checks */

static struct recheck *rechecks(void)
{
	return &state_get()->recheck;
}

static void *run(void *unused)
{
	struct timespec pace = {.tv_sec = PACE};
	struct recheck *r = rechecks();

	(void)unused;
	(void)prctl(PR_SET_NAME, "gpuslice");
	for (;;) {
		bool again = false;

		while (!__atomic_load_n(&r->work, __ATOMIC_ACQUIRE))
			syscall(SYS_futex, &r->work, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
		nanosleep(&pace, NULL);
		__atomic_store_n(&r->work, 0, __ATOMIC_SEQ_CST);
		for (UPCALL_EACH(call, recheck))
			again |= (*call)();
		if (again)
			__atomic_store_n(&r->work, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

void recheck_begin(void)
{
	struct recheck *r = rechecks();
	pthread_t thread;

	if (__atomic_exchange_n(&r->begun, 1, __ATOMIC_ACQ_REL))
		return;
	QUIETLY;
	(void)threads_begin(&thread, run, NULL);
}

void recheck_wake(void)
{
	struct recheck *r = rechecks();

	if (!__atomic_exchange_n(&r->work, 1, __ATOMIC_SEQ_CST))
		syscall(SYS_futex, &r->work, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
