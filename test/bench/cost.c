/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interceptor's cost for calls of the CUDA driver. measure.h has the method, and subjects.h the
 * subjects. A line of JSON per result; bench.py runs this, in slices and outside.
 *
 * cost calls MILLISECONDS             each call, in batches of about MILLISECONDS
 * cost live MOST MILLISECONDS         against the number of live allocations
 * cost siblings MOST MILLISECONDS     against the number of processes
 * cost start                          cuInit and the first context
 * cost cold                           the first small allocations of a process, and their frees
 * cost runtime MILLISECONDS           the runtime library's calls
 */
#include "driver.h"
#include "subjects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	double first = argc > 2 ? atof(argv[2]) : 0;
	double second = argc > 3 ? atof(argv[3]) : 0;

	driver_find();
	if (strcmp(what, "calls") == 0 && first > 0)
		calls_measure(first, argv + 3);
	else if (strcmp(what, "live") == 0 && second > 0)
		live_measure((long)first, second);
	else if (strcmp(what, "siblings") == 0 && second > 0)
		siblings_measure((int)first, second);
	else if (strcmp(what, "start") == 0)
		oneway_measure_start();
	else if (strcmp(what, "cold") == 0)
		cold_measure();
	else if (strcmp(what, "runtime") == 0 && first > 0)
		oneway_measure_runtime(first);
	else if (strcmp(what, "export") == 0)
		ipc_export();
	else if (strcmp(what, "sibling") == 0 && argc == 5)
		siblings_be_one(atoi(argv[2]), atoi(argv[3]), strcmp(argv[4], "context") == 0);
	else {
		fprintf(stderr,
		        "usage: cost calls MILLISECONDS [NAME]... | live MOST MILLISECONDS | "
		        "siblings MOST MILLISECONDS | start | cold | runtime MILLISECONDS\n");
		return 2;
	}
	return 0;
}
