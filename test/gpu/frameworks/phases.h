/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The phases of a C program among the cases of frameworks.py, as phases.py has them. It runs twice
 * in its container, with `within` and then with `beyond` as last argument, and prints `key=value`
 * lines:
 *
 * 	within	phase=within, total=, free=, result=ok or the fault; rest("within")
 * 	beyond	phase=beyond, oom=NAME of the error code; rest("beyond");
 * 		then its memory is freed: phase=after, after=ok or the fault; rest("after")
 *
 * It exits 0 if it could print all this, whatever the results.
 */
#ifndef PHASES_H
#define PHASES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits for the host's checks, for a minute at most, as phases.py does. */
static inline void rest(const char *phase)
{
	const char *directory = getenv("PHASES_DIR");
	char path[4096];
	FILE *file;

	fflush(stdout);
	if (!directory)
		return;
	snprintf(path, sizeof(path), "%s/%s", directory, phase);
	file = fopen(path, "w");
	if (file)
		fclose(file);
	snprintf(path, sizeof(path), "%s/%s.seen", directory, phase);
	for (int i = 0; i < 60 * 50 && access(path, F_OK) != 0; i++)
		usleep(20 * 1000);
}

#endif
