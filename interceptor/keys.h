/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of thread-specific data (pthread_key_create). Each namespace's C library numbers them from
 * 0, but all use one array of the thread: the keys of the driver and of a caller in another
 * namespace would collide. So the free numbers of the one are reserved in the other.
 */
#ifndef GPUSLICE_KEYS_H
#define GPUSLICE_KEYS_H

#include "elf_symbol.h"

/* Records the key functions, if the object is the namespace's C library. */
void keys_see(unsigned int namespace, const struct elf_object *object);

/* Separates keys that the two create from now on. */
void keys_part(unsigned int caller, unsigned int driver);

#endif
