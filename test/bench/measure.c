/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "measure.h"

#include "driver.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 15
#define FEW_BATCHES 5 /* if a single call takes longer than a batch should */
#define FEW_SINGLES 100
/* For calls of at least this many nanoseconds, reading the clock around each is negligible, and the
 * median leaves out calls that waited for the scheduler. */
#define LONG_CALL 4000

struct samples {
	int count;
	double value[BATCHES * MEASURE_MOST];
};

static struct samples singles[2]; /* by the driver's own function, by the program's */

int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void measure_stay(void)
{
	cpu_set_t here;
	int cpu = sched_getcpu();

	if (cpu < 0)
		return;
	CPU_ZERO(&here);
	CPU_SET(cpu, &here);
	(void)sched_setaffinity(0, sizeof(here), &here);
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double quantile(double *values, int count, double q)
{
	qsort(values, (size_t)count, sizeof(*values), by_value);
	return values[(int)(q * (count - 1) + 0.5)];
}

/* The cost of reading the clock, which a single call's time includes. */
static double clock_cost(void)
{
	static double cost = -1;
	double took[1001];

	if (cost < 0) {
		for (int i = 0; i < 1001; i++) {
			int64_t begun = now();

			took[i] = (double)(now() - begun);
		}
		cost = quantile(took, 1001, 0.5);
	}
	return cost;
}

/* Runs one batch; returns the average nanoseconds of a call. With `out` each call is timed by
 * itself, and the median returned. */
static double batch(const struct call *call, int n, struct samples *out)
{
	double *single = out ? &out->value[out->count] : NULL;
	double took, clock = out ? clock_cost() : 0;
	int64_t begun;

	if (call->before)
		call->before(n);
	if (out) {
		for (int i = 0; i < n; i++) {
			begun = now();
			call->once(i);
			took = (double)(now() - begun) - clock;
			single[i] = took > 0 ? took : 0;
		}
		out->count += n;
		took = quantile(single, n, 0.5);
	} else {
		begun = now();
		for (int i = 0; i < n; i++)
			call->once(i);
		took = (double)(now() - begun) / n;
	}
	if (call->after)
		call->after(n);
	return took;
}

/* The number of calls that take about `milliseconds`. *one is the time of a call, in the fastest of
 * several batches: the first are cold, and the scheduler may interrupt others. */
static int batch_size(const struct call *call, double milliseconds, double *one)
{
	int most = call->most ? call->most : MEASURE_MOST, n = 1;
	double fit;

	*one = batch(call, n, NULL);
	for (int tries = 0; tries < 2 || *one * n < milliseconds * 1e6 / 4; tries++) {
		double took = batch(call, n, NULL);

		*one = took < *one ? took : *one;
		if (n == most)
			break;
		if (tries > 0)
			n = n * 4 < most ? n * 4 : most;
	}
	fit = milliseconds * 1e6 / *one;
	return fit < 1 ? 1 : fit > most ? most : (int)fit;
}

static double p99(struct samples *samples)
{
	if (samples->count < FEW_SINGLES)
		return -1;
	return quantile(samples->value, samples->count, 0.99);
}

static struct cost measure_ways(const struct call *call, double milliseconds, bool both)
{
	double took[2][BATCHES], ratio[BATCHES], one;
	int n, batches = BATCHES;
	bool is_long;

	way = &program;
	n = batch_size(call, milliseconds, &one);
	is_long = one > LONG_CALL;
	if (one > 10 * milliseconds * 1e6)
		batches = FEW_BATCHES;
	if (both) {
		way = &own;
		(void)batch(call, n, NULL);
	}
	singles[0].count = singles[1].count = 0;
	for (int i = 0; i < batches; i++) {
		/* The order alternates, so that neither way always finds warm caches. */
		for (int turn = !both; turn < 2; turn++) {
			int which = both ? (turn ^ i) & 1 : 1;
			struct samples *out = &singles[which];

			way = which ? &program : &own;
			took[which][i] = batch(call, n, is_long ? out : NULL);
			if (!is_long)
				(void)batch(call, n, out);
		}
		ratio[i] = both ? took[1][i] / took[0][i] : 1;
	}
	way = &program;
	return (struct cost){
	    .native = both ? quantile(took[0], batches, 0.5) : 0,
	    .slice = quantile(took[1], batches, 0.5),
	    .ratio = quantile(ratio, batches, 0.5),
	    .native_p99 = p99(&singles[0]),
	    .slice_p99 = p99(&singles[1]),
	};
}

struct cost measure(const struct call *call, double milliseconds)
{
	return measure_ways(call, milliseconds, true);
}

struct cost measure_one_way(const struct call *call, double milliseconds)
{
	return measure_ways(call, milliseconds, false);
}

static void print_p99(const char *key, double value)
{
	if (value < 0)
		printf(",\"%s\":null", key);
	else
		printf(",\"%s\":%.1f", key, value);
}

void print_cost(const struct call *call, const struct cost *cost)
{
	printf("\"call\":\"%s\",\"native_ns\":%.2f,\"slice_ns\":%.2f,\"ratio\":%.4f", call->name,
	       cost->native, cost->slice, cost->ratio);
	print_p99("native_p99_ns", cost->native_p99);
	print_p99("slice_p99_ns", cost->slice_p99);
}
