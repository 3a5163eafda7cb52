/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of each library of code in each context. The driver loads it there at the first use,
 * which cannot be undone: a use is refused if no quota is left, or fails afterwards, with its
 * memory charged.
 */
#ifndef GPUSLICE_LIBRARY_H
#define GPUSLICE_LIBRARY_H

#include "overhead.h"

struct use {
	uint64_t library; /* 0: unknown */
	bool first;
	struct watch watch;
};

/* Returns false if no quota is left. */
bool library_use_begin(struct use *use, uint64_t library);

/* Returns `result`, or an error if the memory does not fit. */
CUresult library_use_end(const struct use *use, CUresult result);

/* Report whether it is loaded in a context, in the current one, in all known ones. */
bool library_is_in(uint64_t context, uint64_t library);
bool library_is_here(uint64_t library);
bool library_is_everywhere(uint64_t library);

void library_took(const struct watch *watch, uint64_t library, uint64_t bytes);

#endif
