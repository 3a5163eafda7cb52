/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_ONEWAY_H
#define BENCH_ONEWAY_H

/*
 * What a process can do in one way only: as a program, in a slice or not. Processes are compared in
 * turns. The cost is in slice_ns, whether there is a slice or not.
 */

/* The time of cuInit and the first context. */
void oneway_measure_start(void);

/* The runtime library's calls, which finds its driver functions by itself. Prints nothing where
 * there is no such library. */
void oneway_measure_runtime(double milliseconds);

#endif
