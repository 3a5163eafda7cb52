/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the interceptor. The C library makes them, so that they can call the driver. They
 * handle no signals of the program.
 */
#ifndef GPUSLICE_THREADS_H
#define GPUSLICE_THREADS_H

#include <pthread.h>
#include <stdbool.h>

/* Returns false if no thread can be made. */
bool threads_begin(pthread_t *thread, void *(*run)(void *), void *argument);

/* Waits for the end. Required once per thread. */
void threads_join(pthread_t thread);

#endif
