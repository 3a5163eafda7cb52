/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own calls in C, timed there: what package vmm is compared with. Each returns false
 * if the driver fails. */
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

/*
 * `pages` pages side by side, each by itself, in a range of their own: how long each took, in
 * nanoseconds, is written to `took`.
 */
bool native_pages(enum native_what what, size_t page, size_t pages, uint64_t *took);

/* All at once, as a program does that knows how many it wants: create and map each, one access. */
bool native_range(size_t page, size_t pages, uint64_t *took);

#endif
