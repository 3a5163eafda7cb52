/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring one call by both ways, in alternating batches of one process. On a machine whose speed
 * drifts, two runs compared with one another say more about the machine.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#define MEASURE_MOST 20000 /* calls in one batch, at most */

/* What is measured. The functions use `way`. */
struct call {
	const char *name;
	int most;              /* calls in a batch, at most; 0 is MEASURE_MOST */
	bool (*can)(void);     /* prepares; false: this driver or this room cannot do it */
	void (*before)(int n); /* not timed: before a batch of n */
	void (*once)(int i);   /* timed: the i-th call of a batch, from 0 */
	void (*after)(int n);  /* not timed: after it */
};

/* All in nanoseconds for one call. */
struct cost {
	/* By the driver's own function, and by what a program gets: the median of batches. A
	 * batch's figure is the average of its calls; of calls that take long, the median. */
	double native, slice;
	double ratio;                 /* the median ratio of neighbouring batches */
	double native_p99, slice_p99; /* of single calls; negative if there were too few */
};

/* Measure `call`, with batches of about `milliseconds`. */
struct cost measure(const struct call *call, double milliseconds);

/* The same by one way only: the result's `slice` and `slice_p99`. */
struct cost measure_one_way(const struct call *call, double milliseconds);

/* Print a cost as members of a JSON object. */
void print_cost(const struct call *call, const struct cost *cost);

/* Keep the calling thread on the CPU that it is on. The driver's own threads, which are there once
 * it has a context, are not kept from others. */
void measure_stay(void);

/* CLOCK_MONOTONIC, nanoseconds. */
int64_t now(void);

#endif
