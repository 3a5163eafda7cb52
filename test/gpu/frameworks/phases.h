/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The course of a C program among the cases of frameworks.py, as phases.py tells it. It is run
 * twice in its container, with `within` and then with `beyond` as last argument, and each time
 * prints one `key=value` a line:
 *
 *	within	phase=within, total=, free=, result=ok or what was wrong; rest("within")
 *	beyond	phase=beyond, oom=NAME of the error code; rest("beyond");
 *		then what it took is freed: phase=after, after=ok or what was wrong; rest("after")
 *
 * It exits 0 if it could say all this, whether what it says is good or bad.
 */
#ifndef PHASES_H
#define PHASES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Waits until the host has looked: a minute at most, as phases.py does. */
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
