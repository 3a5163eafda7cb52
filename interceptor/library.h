/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver loads a library of code into a context at its first use there, which cannot be undone:
 * a use is refused if no quota is left, or fails afterwards, with its memory charged.
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

#endif
