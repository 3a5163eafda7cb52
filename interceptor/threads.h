/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the interceptor's own in the program's process. They are the C library's, so that the
 * driver can be called in them, and no signal of the program's is handled there.
 */
#ifndef GPUSLICE_THREADS_H
#define GPUSLICE_THREADS_H

#include <pthread.h>
#include <stdbool.h>

/* False if there is none. */
bool threads_begin(pthread_t *thread, void *(*run)(void *), void *argument);

/* Wait until it has ended, which has to be done once. */
void threads_join(pthread_t thread);

#endif
