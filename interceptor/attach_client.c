/* SPDX-License-Identifier: Apache-2.0 */
#include "attach_client.h"

#include "ledger.h"
#include "monotonic.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* The socket's path. The container's directory comes first: an image must not redirect its
 * processes by its environment. That is read once: later another thread of the program may be
 * changing it. A forked child inherits the result. */
#define PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

static const char in_container[] = ATTACH_CONTAINER_DIR "/" ATTACH_SOCKET_NAME;
static char session_path[PATH_BYTES];
static uint32_t session_path_read; /* 1: being read, 2: set */

/* Return the session's path, or an empty one. `own` is for threads that come during the read. */
static const char *path_in_session(char own[PATH_BYTES])
{
	static const char name[] = "/" ATTACH_SOCKET_NAME;
	const char *directory;
	uint32_t none = 0;

	if (__atomic_load_n(&session_path_read, __ATOMIC_ACQUIRE) == 2)
		return session_path;
	directory = getenv(ATTACH_DIR_ENV);
	own[0] = '\0';
	if (directory && directory[0] == '/' && strlen(directory) + sizeof(name) <= PATH_BYTES)
		snprintf(own, PATH_BYTES, "%s%s", directory, name);
	if (!__atomic_compare_exchange_n(&session_path_read, &none, 1, false, __ATOMIC_RELAXED,
	                                 __ATOMIC_RELAXED))
		return own;
	memcpy(session_path, own, strlen(own) + 1);
	__atomic_store_n(&session_path_read, 2, __ATOMIC_RELEASE);
	return session_path;
}

bool attach_address(struct sockaddr_un *address)
{
	char own[PATH_BYTES];
	const char *path = in_container;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	if (access(in_container, F_OK) != 0)
		path = path_in_session(own);
	memcpy(address->sun_path, path, strlen(path) + 1);
	return path[0] != '\0';
}

/* Works without the container's socket, which may be missing while the enforcer is restarted. */
bool attach_is_elastic(void)
{
	char own[PATH_BYTES], file[PATH_BYTES + sizeof(ATTACH_ELASTIC_NAME)];
	int saved = errno;
	bool is = access(ATTACH_CONTAINER_DIR "/" ATTACH_ELASTIC_NAME, F_OK) == 0;

	if (!is && access(in_container, F_OK) != 0) {
		const char *path = path_in_session(own);

		snprintf(file, sizeof(file), "%.*s" ATTACH_ELASTIC_NAME,
		         (int)(strlen(path) - strlen(ATTACH_SOCKET_NAME)), path);
		is = path[0] && access(file, F_OK) == 0;
	}
	errno = saved;
	return is;
}

/* Return whether a signal handler interrupted the call, within ASK_SECONDS. */
static bool interrupted(ssize_t result, uint64_t began)
{
	return result < 0 && errno == EINTR && monotonic_seconds() - began <= ASK_SECONDS;
}

void ask_close(int descriptors[ASK_DESCRIPTORS])
{
	for (unsigned i = 0; i < ASK_DESCRIPTORS; i++) {
		if (descriptors[i] >= 0)
			close(descriptors[i]);
		descriptors[i] = -1;
	}
}

static enum ask_result exchange(int s, const struct attach_request *request,
                                struct attach_reply *reply, int descriptors[ASK_DESCRIPTORS])
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int[ASK_DESCRIPTORS]))];
	} control;
	struct iovec io = {.iov_base = reply, .iov_len = sizeof(*reply)};
	struct msghdr message = {.msg_iov = &io,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};
	uint64_t began = monotonic_seconds();
	struct cmsghdr *header;
	ssize_t n;

	do
		n = send(s, request, sizeof(*request), MSG_NOSIGNAL);
	while (interrupted(n, began));
	if (n != (ssize_t)sizeof(*request))
		return ASK_UNREACHABLE;
	do
		n = recvmsg(s, &message, MSG_CMSG_CLOEXEC);
	while (interrupted(n, began));
	if (n < 0)
		return ASK_UNREACHABLE;
	if (n == 0) {
		/* The enforcer died between request and reply. */
		errno = ECONNRESET;
		return ASK_UNREACHABLE;
	}
	header = CMSG_FIRSTHDR(&message);
	for (unsigned i = 0; header && i < ASK_DESCRIPTORS; i++) {
		if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
		    header->cmsg_len >= CMSG_LEN((i + 1) * sizeof(int)))
			memcpy(&descriptors[i], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
	}
	if (n != (ssize_t)sizeof(*reply) || (message.msg_flags & MSG_TRUNC) ||
	    reply->magic != ATTACH_MAGIC || reply->version != ATTACH_VERSION) {
		ask_close(descriptors);
		return ASK_NONSENSE;
	}
	return ASK_ANSWERED;
}

enum ask_result ask_enforcer(struct attach_request *request, struct attach_reply *reply,
                             int descriptors[ASK_DESCRIPTORS], int *connection)
{
	struct timeval patience = {.tv_sec = ASK_SECONDS};
	struct sockaddr_un address;
	uint64_t began = monotonic_seconds();
	enum ask_result result;
	int s, n, saved, none[ASK_DESCRIPTORS];
	int *got = descriptors ? descriptors : none;

	for (unsigned i = 0; i < ASK_DESCRIPTORS; i++)
		got[i] = -1;
	if (connection)
		*connection = -1;
	request->magic = ATTACH_MAGIC;
	request->version = ATTACH_VERSION;
	request->layout = LEDGER_LAYOUT;
	if (!attach_address(&address))
		return ASK_NO_DIRECTORY;
	s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return ASK_UNREACHABLE;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	do
		n = connect(s, (const struct sockaddr *)&address, sizeof(address));
	while (interrupted(n, began));
	if (n < 0)
		result = ASK_UNREACHABLE;
	else
		result = exchange(s, request, reply, got);
	saved = errno;
	if (!descriptors)
		ask_close(got);
	if (connection && result == ASK_ANSWERED)
		*connection = s;
	else
		close(s);
	errno = saved;
	return result;
}

bool enforcer_there(int connection)
{
	struct pollfd p = {.fd = connection, .events = POLLRDHUP};
	int n;

	do
		n = poll(&p, 1, 0); /* does not block */
	while (n < 0 && errno == EINTR);
	return n == 0;
}
