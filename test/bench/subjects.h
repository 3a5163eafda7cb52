/* SPDX-License-Identifier: Apache-2.0 */
/* What cost.c measures, by the file that has it. */
#ifndef BENCH_SUBJECTS_H
#define BENCH_SUBJECTS_H

#include "measure.h"

/* --- calls.c ---------------------------------------------------------------------------- */

/* Also measured against a growing number. */
extern const struct call call_small_kept; /* cuMemAlloc 1 KiB, kept until the batch ends */
extern const struct call call_small_pair; /* cuMemAlloc + cuMemFree 1 KiB */
extern const struct call call_2m;         /* cuMemAlloc + cuMemFree 2 MiB */
extern const struct call call_async;      /* cuMemAllocAsync + cuMemFreeAsync 1 MiB, warm */

/* Measure every call, or those with one of the texts in their names (NULL ends them). Prints a line
 * of JSON for each; `skipped` marks one that is not possible. */
void calls_measure(double milliseconds, char *const *texts);

/* --- live.c ----------------------------------------------------------------------------- */

/* The cost of a call while the process has 1, 10, 100, ... live allocations: a line of JSON for
 * each number. cuMemAlloc up to `most`, cuMemAllocAsync up to a tenth of it. */
void live_measure(long most, double milliseconds);

/* --- siblings.c ------------------------------------------------------------------------- */

/*
 * The cost of calls in this process while 1, 2, 4, ... processes are in its slice, including this
 * one, up to `most`: once while the others sleep, and once while they charge and release as fast as
 * they can. A line of JSON for each number, state and call.
 *
 * A context takes about half a GiB of the card. As many siblings get one as leave room on it; the
 * others allocate physical memory, which needs none. `contexts` is the number of processes with
 * one.
 */
void siblings_measure(int most, double milliseconds);

/* Run as sibling number `index`; `descriptor` is the shared memory. Never returns. */
void siblings_be_one(int descriptor, int index, bool with_context);

/* --- cold.c ----------------------------------------------------------------------------- */

/* The first 20,000 small allocations of a process by each way, and their frees, a line of JSON for
 * each: no map has grown and no page was touched before. Averages include every call. */
void cold_measure(void);

/* --- oneway.c --------------------------------------------------------------------------- */

/* Measurements that a process can make in one way only: as a program, in a slice or not. Processes
 * alternate. The cost is in slice_ns in either case. */

/* The time of cuInit and the first context. */
void oneway_measure_start(void);

/* The runtime library's calls, which finds its driver functions by itself. Prints nothing if it is
 * not installed. */
void oneway_measure_runtime(double milliseconds);

/* --- ipc.c ------------------------------------------------------------------------------ */

/* To open memory of another process of the slice, and to close it. */
extern const struct call call_ipc;

/* Be that process: print a handle, and wait for the measured one's end. */
void ipc_export(void);

#endif
