/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_COLD_H
#define BENCH_COLD_H

/* The first 20,000 small allocations of a process by each way, and their frees, a line of JSON for
 * each: no map has grown and no page was touched before. Averages include every call. */
void cold_measure(void);

#endif
