/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files that are watched and not kept: a file leaves the set when its last descriptor is
 * closed, in whatever process that is, or on its way to one. It is the set of an epoll instance,
 * out of which the kernel takes what is closed; /proc/self/fdinfo lists what is left. Nobody waits
 * for events of it.
 *
 * The program may close the descriptors that it does not know, and open others by their numbers. So
 * a file is always in the set by which it is recognised, and a descriptor is closed only if the set
 * has it with the file that it was put there with. All of these leave errno as they like.
 */
#ifndef GPUSLICE_FILESET_H
#define GPUSLICE_FILESET_H

#include "lock.h"

struct fileset {
	struct lock lock;
	int epoll; /* 0: not made yet, -1: it could not be */
	int token; /* the file by which it is recognised */
};

/* Put a file in. False if the kernel takes none of its kind, or there is no set. */
bool fileset_put(struct fileset *set, int descriptor, uint64_t key);

/* Have `see` see the keys, but 0, of all files in the set. False if not all may have been. */
bool fileset_look(const struct fileset *set, void (*see)(void *data, uint64_t key), void *data);

/* A descriptor of one's own of a file, for fileset_close(); 0: there can be none. Forked children
 * do not have it. */
int fileset_keep(struct fileset *set, int descriptor);
void fileset_close(int kept);

#endif
