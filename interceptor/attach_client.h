/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ATTACH_CLIENT_H
#define GPUSLICE_ATTACH_CLIENT_H

#include "attach.h"

#include <stdbool.h>
#include <sys/un.h>

enum ask_result {
	ASK_ANSWERED = 0,
	ASK_NO_DIRECTORY, /* no socket in ATTACH_CONTAINER_DIR or ATTACH_DIR_ENV */
	ASK_UNREACHABLE,  /* no listener, or no reply in time: see errno */
	ASK_NONSENSE,     /* not a valid reply */
};

/* The timeout for a reply. */
#define ASK_SECONDS 5

/* The most descriptors in one reply. */
#define ASK_DESCRIPTORS (1 + ATTACH_POOLS)

/* Send a request to the enforcer, and receive the reply. Fills in magic, version and layout.
 * `descriptors` become those of the reply, or -1; NULL if it has none. If `connection` is not NULL,
 * the connection stays open in it (-1 if there is none), for enforcer_there(). */
enum ask_result ask_enforcer(struct attach_request *request, struct attach_reply *reply,
                             int descriptors[ASK_DESCRIPTORS], int *connection);

/* Closes those that are there. */
void ask_close(int descriptors[ASK_DESCRIPTORS]);

/* Find the attach socket; false, and an empty path, if the process is in no slice. Changes
 * errno. */
bool attach_address(struct sockaddr_un *address);

/* Return whether the slice is elastic, which a file beside the socket marks. */
bool attach_is_elastic(void);

/* Return whether the enforcer that replied is still there. */
bool enforcer_there(int connection);

#endif
