/* SPDX-License-Identifier: Apache-2.0 */
/* Measures one call by both ways, in alternating batches of one process. Separate runs would also
 * compare the speed of the machine at two times. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#define MEASURE_MOST 20000 /* calls in a batch */

struct call {
	const char *name;
	int most;          /* calls in a batch; 0 is MEASURE_MOST */
	bool (*can)(void); /* prepares; false if this driver or the free memory does not allow it */
	void (*before)(int n); /* not timed: before a batch of n */
	void (*once)(int i);   /* timed: the i-th call of a batch, from 0 */
	void (*after)(int n);  /* not timed: after it */
};

/* All in nanoseconds for one call. */
struct cost {
	/* The median of batches, by the driver's own function and by the program's. A batch's
	 * figure is the average of its calls, or their median if they take long. */
	double native, slice;
	double ratio;                 /* the median ratio of neighbouring batches */
	double native_p99, slice_p99; /* of single calls; negative if there were too few */
};

struct cost measure(const struct call *call, double milliseconds);

/* The same by one way only: the result's `slice` and `slice_p99`. */
struct cost measure_one_way(const struct call *call, double milliseconds);

/* Print a cost as members of a JSON object. */
void print_cost(const struct call *call, const struct cost *cost);

/* Bind the calling thread to its current CPU. The driver's own threads, which start with a context,
 * are not kept off it. */
void measure_stay(void);

/* CLOCK_MONOTONIC, nanoseconds. */
int64_t now(void);

#endif
