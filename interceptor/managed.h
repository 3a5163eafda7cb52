/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables declared __managed__ in code. They are allocated with it, and driver truth lists them
 * for no process, as with cuMemAllocManaged: each is charged at its size. Names come from the image
 * (image.h), addresses from the driver. A variable not named in the image is charged when the
 * program requests it.
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

/* Returns the names in an image or else a file. The caller passes them to managed_load() or
 * managed_keep(). */
struct names managed_names(const void *image, const char *path);

/* Charges a loaded module's variables. False if they do not fit: the caller unloads it. */
bool managed_load(CUmodule module, struct names names);

/* Keep and forget a library's names, for its first use in each context. */
void managed_keep(uint64_t library, struct names names);
void managed_forget(uint64_t library);

/* Charges a library's variables at its first use in the current context. False if they do not fit;
 * they stay charged, since the driver frees them only with the library. */
bool managed_use(uint64_t library);

/* Charge a variable by its name. False if it does not fit: it is charged all the same if the
 * program requested it (`anyway`). */
bool managed_asked(CUmodule module, const char *name, bool anyway);
bool managed_asked_of_library(uint64_t library, const char *name);

#endif
