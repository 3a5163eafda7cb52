/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MADV_WIPEONFORK_ 18 /* Linux 4.14; no name in older headers */

_Alignas(64) struct at_hand at_hand;

struct state state;

/* The pid that `state` belongs to, where the kernel cannot clear it. */
static uint32_t pid;

void process_begin(void)
{
	uint32_t now, known = __atomic_load_n(&pid, __ATOMIC_RELAXED);

	/* Threads may do this concurrently: none has written to `state` yet. */
	if (!known && madvise(&state, sizeof(state), MADV_WIPEONFORK_) == 0) {
		__atomic_store_n(&at_hand.wiped, true, __ATOMIC_RELEASE);
		return;
	}
	now = (uint32_t)syscall(SYS_getpid);
	/* A forked child has one thread. */
	if (known && known != now)
		memset(&state, 0, sizeof(state));
	if (known != now)
		__atomic_store_n(&pid, now, __ATOMIC_RELAXED);
}
