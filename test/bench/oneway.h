/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_ONEWAY_H
#define BENCH_ONEWAY_H

#include <stdbool.h>

/*
 * What a process can do in one way only: as a program, in a slice or not. Processes are compared in
 * turns. The cost is in slice_ns, whether there is a slice or not.
 */

/* The time of cuInit and the first context. */
void oneway_measure_start(void);

/* The first 20,000 small allocations of a process, or their frees; loads of a small module. */
void oneway_measure_cold(bool frees);
void oneway_measure_load(void);

/* The runtime library's calls, which finds its driver functions by itself. Prints nothing where
 * there is no such library. */
void oneway_measure_runtime(double milliseconds);

#endif
