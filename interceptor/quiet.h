/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Around what a hook does by system calls of its own: the program does not notice. errno stays as
 * it was, and the thread cannot be cancelled in one of them, with a lock held or bytes charged.
 */
#ifndef GPUSLICE_QUIET_H
#define GPUSLICE_QUIET_H

#include <errno.h>
#include <pthread.h>

struct quiet {
	int error, cancel;
};

static inline struct quiet quiet_begin(void)
{
	struct quiet quiet = {.error = errno};

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &quiet.cancel);
	return quiet;
}

static inline void quiet_end(struct quiet quiet)
{
	pthread_setcancelstate(quiet.cancel, &quiet.cancel);
	errno = quiet.error;
}

#endif
