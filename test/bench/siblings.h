/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_SIBLINGS_H
#define BENCH_SIBLINGS_H

#include <stdbool.h>

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

#endif
