/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of thread-specific data (pthread_key_create): each namespace's C library numbers its own
 * from 0, and all keep the data in one array of the thread. So where the driver is called from
 * another namespace, its keys and the caller's would be the same: numbers that the one may still
 * take are taken away from the other.
 */
#ifndef GPUSLICE_KEYS_H
#define GPUSLICE_KEYS_H

#include "elf_symbol.h"

/* Look whether an object of a namespace is its C library's part that has keys. */
void keys_see(unsigned int namespace, const struct elf_object *object);

/* What either namespace creates from now on is the other's no more. */
void keys_part(unsigned int caller, unsigned int driver);

#endif
