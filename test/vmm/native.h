/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own calls in C, timed: the reference for package vmm. Each returns false if the
 * driver fails. */
#ifndef GPUSLICE_TEST_VMM_NATIVE_H
#define GPUSLICE_TEST_VMM_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the primary context of device 0. */
bool native_start(void);
void native_end(void);

enum native_what {
	NATIVE_NEW,    /* create, map, access */
	NATIVE_CACHED, /* map, access */
	NATIVE_GIVE,   /* unmap, release */
};

/* `pages` adjacent pages, each mapped by itself, in a range of their own. Stores the nanoseconds of
 * each in `took`. */
bool native_pages(enum native_what what, size_t page, size_t pages, uint64_t *took);

/* All at once, as in a program that knows their number: create and map each, one access. */
bool native_range(size_t page, size_t pages, uint64_t *took);

#endif
