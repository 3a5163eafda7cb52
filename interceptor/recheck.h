/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that checks each second, while there is reason to, whether memory that processes share
 * is in use elsewhere, and whether its lenders are alive. */
#ifndef GPUSLICE_RECHECK_H
#define GPUSLICE_RECHECK_H

#include "upcall.h"

#include <stdbool.h>
#include <stdint.h>

struct recheck {
	uint32_t begun; /* the thread runs */
	uint32_t work;  /* the thread has work; a futex */
};

/* Called by the thread. Returns whether to call it again. */
typedef bool recheck_upcall(void);
UPCALLS(recheck);

/* Starts the thread, with no lock held: the C library may call the program's malloc(). */
void recheck_begin(void);
/* Gives it work. May be called with any lock held. */
void recheck_wake(void);

#endif
