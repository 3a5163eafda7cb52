/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_MONOTONIC_H
#define GPUSLICE_MONOTONIC_H

#include <stdint.h>
#include <time.h>

static inline uint64_t monotonic_nanoseconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline uint64_t monotonic_seconds(void)
{
	return monotonic_nanoseconds() / 1000000000;
}

#endif
