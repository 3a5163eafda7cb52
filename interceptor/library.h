/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Libraries of code, which the driver loads into a context at the first use there: what each took
 * in which context. What came with a first use cannot be undone; so a use is refused before, if
 * nothing is left at all, or fails afterwards, with what it took charged all the same.
 */
#ifndef GPUSLICE_LIBRARY_H
#define GPUSLICE_LIBRARY_H

#include "overhead.h"

/* A use of a library, which may be the first in the current context. */
struct use {
	uint64_t library; /* 0: not known */
	bool first;
	struct watch watch;
};

/* Before it: false if nothing is left. */
bool library_use_begin(struct use *use, uint64_t library);

/* After it. `result`, or that it does not fit. */
CUresult library_use_end(const struct use *use, CUresult result);

/* Whether it is loaded in a context, in the current one, in all that are known. */
bool library_is_in(uint64_t context, uint64_t library);
bool library_is_here(uint64_t library);
bool library_is_everywhere(uint64_t library);

/* It was loaded into the current context, and took so much. */
void library_took(const struct watch *watch, uint64_t library, uint64_t bytes);

#endif
