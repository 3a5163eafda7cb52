/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LIVE_H
#define BENCH_LIVE_H

/* The cost of a call while the process has 1, 10, 100, ... live allocations: a line of JSON for
 * each number. cuMemAlloc up to `most`, cuMemAllocAsync up to a tenth of it. */
void live_measure(long most, double milliseconds);

#endif
