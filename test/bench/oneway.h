/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_ONEWAY_H
#define BENCH_ONEWAY_H

/* Measurements that a process can make in one way only: as a program, in a slice or not. Processes
 * alternate. The cost is in slice_ns in either case. */

/* The time of cuInit and the first context. */
void oneway_measure_start(void);

/* The runtime library's calls, which finds its driver functions by itself. Prints nothing if it is
 * not installed. */
void oneway_measure_runtime(double milliseconds);

#endif
