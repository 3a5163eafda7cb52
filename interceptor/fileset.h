/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files that are watched and not kept: a file leaves the set when its last descriptor is
 * closed, in any process or on its way to one. It is the set of an epoll instance, from which the
 * kernel removes closed files; /proc/self/fdinfo lists the rest. No thread waits for its events.
 *
 * The program may close descriptors that it does not know, and reuse their numbers. So one file in
 * the set identifies the set, and a descriptor is closed only if the set has it with the file that
 * it was added with. All of these functions may change errno.
 */
#ifndef GPUSLICE_FILESET_H
#define GPUSLICE_FILESET_H

#include "lock.h"

struct fileset {
	struct lock lock;
	int epoll; /* 0: not made yet, -1: could not be made */
	int token; /* the file that identifies the set */
};

/* Add a file. False if the kernel watches none of its kind, or there is no set. */
bool fileset_put(struct fileset *set, int descriptor, uint64_t key);

/* Call `see` with the key, unless 0, of each file in the set. False if some may be missing. */
bool fileset_look(const struct fileset *set, void (*see)(void *data, uint64_t key), void *data);

/* Return a duplicate descriptor, to be closed by fileset_close(); 0 if there can be none. Forked
 * children do not have it. */
int fileset_keep(struct fileset *set, int descriptor);
void fileset_close(int kept);

#endif
