/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables that a module or a library declares __managed__. They come with its load, and driver
 * truth lists their memory for no process, as that of cuMemAllocManaged: so each is charged at its
 * size. Its image says what they are called (image.h), and the driver where each is; one that the
 * image does not name is charged when the program asks for it.
 */
#ifndef GPUSLICE_MANAGED_H
#define GPUSLICE_MANAGED_H

#include "cuda_abi.h"
#include "lock.h"
#include "map.h"

/* Each with a 0 after it. */
struct names {
	char *text;
	size_t bytes;
};

struct manageds {
	struct lock lock; /* guards `of_library`; held while a variable is charged */
	MAP(struct names) of_library;
};

/* Return the names in an image in memory or in a file, for managed_load(), managed_keep() or
 * managed_drop(). */
struct names managed_names(const void *image);
struct names managed_names_of_file(const char *path);
void managed_drop(struct names names);

/* A module was loaded: charge its variables. False if they do not fit; then it is to be unloaded.
 */
bool managed_load(CUmodule module, struct names names);

/* A library was loaded, which has its variables from the first use in a context on. */
void managed_keep(uint64_t library, struct names names);
void managed_forget(uint64_t library);

/* Charge the variables of a library at its first use in the current context. False if they do not
 * fit; they stay charged, since the driver frees them with the library only. */
bool managed_use(uint64_t library);

/* The program has asked for a variable. False as for managed_use(). */
bool managed_asked(CUmodule module, const char *name);
bool managed_asked_of_library(uint64_t library, const char *name);

#endif
