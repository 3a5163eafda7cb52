/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a process that exited while a forked child lives: one that still has its descriptors,
 * and one that has called execve. */
#define _GNU_SOURCE
#include "peer.h"

#include <fcntl.h>

#define SIZE (256 * MiB)

static struct peer forks;

/* Forks a child that lives until the first process ends it; returns once the child has called
 * execve, if it does. */
static void leave_child(int socket, bool executes)
{
	int begun[2]; /* close-on-exec */
	char byte;
	pid_t child;

	if (pipe2(begun, O_CLOEXEC) == -1)
		stop("pipe2 failed");
	child = fork();
	if (child == -1)
		stop("fork failed");
	if (child == 0) {
		if (executes && dup2(socket, STDIN_FILENO) != -1)
			execlp("cat", "cat", (char *)NULL);
		close(begun[1]);
		while (read(socket, &byte, 1) > 0)
			;
		_exit(0);
	}
	close(begun[1]);
	if (read(begun[0], &byte, 1) != 0)
		stop("the child wrote");
	give(socket, &child, sizeof(child));
}

static void be_parent(int socket, bool executes)
{
	CUdeviceptr early, late;

	await_turn(socket);
	start_with_context();
	MUST(cuMemAlloc_v2(&early, SIZE));
	leave_child(socket, executes);
	MUST(cuMemAlloc_v2(&late, SIZE));
	give_turn(socket);
	pause();
}

static void be_one_that_forks(int socket)
{
	be_parent(socket, false);
}

static void be_one_whose_child_executes(int socket)
{
	close(forks.socket); /* otherwise the other one's child would live as long as this */
	be_parent(socket, true);
}

/* The parent's memory: as while it lived, as before it started, or something else. */
static void say(const char *key, const struct peer *parent, const long long *alive, long long empty)
{
	long long pid = listed(parent->pid), card = held();

	printf("%s: listed %s, card %s\n", key,
	       pid == -1         ? "no more"
	       : pid == alive[0] ? "as alive"
	                         : "otherwise",
	       card == empty      ? "as before"
	       : card == alive[1] ? "as alive"
	                          : "otherwise");
}

/* Waits for the child of an exited process: as its reaper, or by watching it (qemu-user has no
 * subreapers), for at most five seconds. */
static void await_end(pid_t child)
{
	if (waitpid(child, NULL, 0) == child)
		return;
	for (int i = 0; i < 5000 && kill(child, 0) == 0; i++)
		usleep(1000);
}

static void outlive(const char *what, struct peer *peer)
{
	long long empty = held(), alive[2];
	pid_t child;

	give_turn(peer->socket);
	take(peer->socket, &child, sizeof(child));
	await_turn(peer->socket);
	alive[0] = listed(peer->pid);
	alive[1] = held();
	printf("%s.alive: listed at least what it took %d, card at least that %d\n", what,
	       alive[0] >= 2 * (long long)SIZE, alive[1] - empty >= alive[0]);

	kill(peer->pid, SIGKILL);
	waitpid(peer->pid, NULL, 0);
	say(keyed("%s.parent_dead", what), peer, alive, empty);

	close(peer->socket);
	await_end(child);
	say(keyed("%s.child_ended", what), peer, alive, empty);
}

int main(void)
{
	struct peer executes;

	prctl(PR_SET_CHILD_SUBREAPER, 1); /* to wait for orphans */
	forks = start_peer(be_one_that_forks);
	executes = start_peer(be_one_whose_child_executes);
	start();
	outlive("fork", &forks);
	outlive("exec", &executes);
	return 0;
}
