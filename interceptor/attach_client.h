/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ATTACH_CLIENT_H
#define GPUSLICE_ATTACH_CLIENT_H

#include "attach.h"

#include <stdbool.h>
#include <sys/un.h>

/* What the last question met, for the message. */
enum ask_result {
	ASK_ANSWERED = 0,
	ASK_NO_DIRECTORY, /* neither ATTACH_CONTAINER_DIR nor ATTACH_DIR_ENV leads to a socket */
	ASK_UNREACHABLE,  /* nobody listens, or no answer in time: errno says which */
	ASK_NONSENSE,     /* an answer that is not one */
};

/* How long the enforcer may take to answer, in seconds. */
#define ASK_SECONDS 5

/* How many descriptors come with an answer at most. */
#define ASK_DESCRIPTORS (1 + ATTACH_POOLS)

/*
 * Ask the enforcer one question. magic and version of `request` are filled in. `descriptors` become
 * those that came with the answer, or -1; NULL is for a question that is answered without.
 *
 * If `connection` is NULL the connection is closed. Else it is left open in *connection (-1 if
 * there is none), for the caller to see whether the enforcer that answered is still there.
 */
enum ask_result ask_enforcer(struct attach_request *request, struct attach_reply *reply,
                             int descriptors[ASK_DESCRIPTORS], int *connection);

/* Find the attach socket; false, and an empty path, if the process is in no slice. Changes errno.
 */
bool attach_address(struct sockaddr_un *address);

/* Whether the slice is elastic: a file beside the socket says so. */
bool attach_is_elastic(void);

/* Whether the enforcer at the other end is alive. */
bool enforcer_there(int connection);

#endif
