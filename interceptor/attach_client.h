/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUSLICE_ATTACH_CLIENT_H
#define GPUSLICE_ATTACH_CLIENT_H

#include "attach.h"

/* What the last question met, for the message. */
enum ask_result {
	ASK_ANSWERED = 0,
	ASK_NO_DIRECTORY, /* neither ATTACH_CONTAINER_DIR nor ATTACH_DIR_ENV leads to a socket */
	ASK_UNREACHABLE,  /* nobody listens, or no answer in time: errno says which */
	ASK_NONSENSE,     /* an answer that is not one */
};

/* How long the enforcer may take to answer, in seconds. */
#define ASK_SECONDS 5

/*
 * Ask the enforcer one question and close the connection. *descriptor becomes the one that came
 * with the answer, or -1. magic and version of `request` are filled in.
 */
enum ask_result ask_enforcer(struct attach_request *request, struct attach_reply *reply,
                             int *descriptor);

#endif
