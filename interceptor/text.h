/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing names without the C library. A program may define strcmp and the like itself, and find
 * the C library's by dlsym, or not have initialised its own yet (sanitizers): on the way from its
 * dlsym to ours no such function is called.
 */
#ifndef GPUSLICE_TEXT_H
#define GPUSLICE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

static inline bool text_equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static inline bool text_begins(const char *text, const char *with)
{
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

/* The part behind the last slash. */
static inline const char *text_file_name(const char *path)
{
	const char *name = path;

	for (; *path; path++) {
		if (*path == '/')
			name = path + 1;
	}
	return name;
}

#endif
