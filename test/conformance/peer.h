/* SPDX-License-Identifier: Apache-2.0 */
/* For the conformance programs of two processes: the second is forked before the first uses the
 * driver, with a socket between them. They take turns, so their lines have a fixed order. */
#ifndef CONFORMANCE_PEER_H
#define CONFORMANCE_PEER_H

#include "conformance.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
	pid_t pid;
	int socket;
};

static UNUSED struct peer start_peer(void (*play)(int socket))
{
	struct peer peer;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == -1)
		stop("socketpair failed");
	peer.pid = fork();
	if (peer.pid == -1)
		stop("fork failed");
	if (peer.pid == 0) {
		/* Frees the card however the first process ends. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		play(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	peer.socket = ends[0];
	return peer;
}

static UNUSED void give(int to, const void *bytes, size_t size)
{
	if (write(to, bytes, size) != (ssize_t)size)
		stop("the other process is gone");
}

static UNUSED void take(int from, void *bytes, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t got = read(from, (char *)bytes + done, size - done);

		if (got <= 0)
			stop("the other process is gone");
		done += (size_t)got;
	}
}

static UNUSED void give_turn(int to)
{
	give(to, "t", 1);
}

static UNUSED void await_turn(int from)
{
	char turn;

	take(from, &turn, 1);
}

static UNUSED void kill_peer(struct peer *peer)
{
	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
	close(peer->socket);
}

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static UNUSED void send_file(int to, int fd)
{
	char byte = 'f';
	struct iovec io = {&byte, 1};
	union control control;
	struct msghdr message = {.msg_iov = &io,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};

	memset(&control, 0, sizeof(control));
	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	if (sendmsg(to, &message, 0) != 1)
		stop("sendmsg failed");
}

static UNUSED int receive_file(int from)
{
	char byte;
	struct iovec io = {&byte, 1};
	union control control;
	struct msghdr message = {.msg_iov = &io,
	                         .msg_iovlen = 1,
	                         .msg_control = control.bytes,
	                         .msg_controllen = sizeof(control.bytes)};
	int fd;

	if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		stop("no descriptor came");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* The figures of both processes and the card when measure_from_here() was called. */
static struct {
	struct peer *peer;
	long long peers, own, card;
} since UNUSED;

static UNUSED void measure_from_here(struct peer *peer)
{
	since.peer = peer;
	since.peers = listed(peer->pid);
	since.own = listed(getpid());
	since.card = held();
}

/* "exporter" is the other process, "importer" this one. */
static UNUSED void say_all(const char *key)
{
	long long peers = listed(since.peer->pid);

	printf("%s: exporter ", key);
	if (peers == -1)
		printf("gone");
	else
		printf("%+lld", peers - since.peers);
	printf(", importer %+lld, card %+lld\n", listed(getpid()) - since.own, held() - since.card);
}

#endif
