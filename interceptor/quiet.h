/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hides a hook's own system calls: preserves errno, and defers cancellation of the thread, which
 * may hold a lock or have bytes charged.
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

static inline void quiet_end_of_block(const struct quiet *quiet)
{
	quiet_end(*quiet);
}

/* From here to the end of the block. */
#define QUIETLY struct quiet quietly __attribute__((cleanup(quiet_end_of_block))) = quiet_begin()

#endif
