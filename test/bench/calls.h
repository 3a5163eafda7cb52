/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_CALLS_H
#define BENCH_CALLS_H

#include "measure.h"

/* Also measured against a growing number. */
extern const struct call call_small_kept; /* cuMemAlloc 1 KiB, kept until the batch ends */
extern const struct call call_small_pair; /* cuMemAlloc + cuMemFree 1 KiB */
extern const struct call call_2m;         /* cuMemAlloc + cuMemFree 2 MiB */
extern const struct call call_async;      /* cuMemAllocAsync + cuMemFreeAsync 1 MiB, warm */

/* Measure every call, or those with one of the texts in their names (NULL ends them). Prints a line
 * of JSON for each; `skipped` marks one that is not possible. */
void calls_measure(double milliseconds, char *const *texts);

#endif
