/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LIVE_H
#define BENCH_LIVE_H

/*
 * What a call costs while the process has 1, 10, 100, ... allocations that live, up to `most`: a
 * line of JSON for each number. cuMemAlloc up to `most`, cuMemAllocAsync up to a tenth of it.
 */
void live_measure(long most, double milliseconds);

#endif
