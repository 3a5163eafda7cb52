/* SPDX-License-Identifier: Apache-2.0 */
/*
 * enter: what a runtime does between a container's creation and its program, and no more.
 *
 *	enter create CGROUP ROOTFS WHAT:WHERE… -- PROGRAM ARG…
 *		goes into the cgroup, makes a mount namespace, binds each WHAT on ROOTFS/WHERE,
 *		says "created PID", and waits for a byte on its standard input: the hooks run now.
 *		Then the root is ROOTFS, and it becomes PROGRAM.
 *	enter join CGROUP PID -- PROGRAM ARG…
 *		goes into the cgroup, and the mount namespace and root of PID, and becomes PROGRAM.
 *	enter hide CGROUP -- PROGRAM ARG…
 *		goes into the cgroup alone, where nothing preloads the interceptor.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static void must(int result, const char *what, const char *name)
{
	if (result >= 0)
		return;
	printf("what: %s %s: %s\n", what, name, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void join_cgroup(const char *cgroup)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	must(fd, "open", path);
	must((int)write(fd, "0", 1), "write", path);
	close(fd);
}

static void create(const char *rootfs, char **binds)
{
	char where[512], byte;

	must(unshare(CLONE_NEWNS), "unshare", "the mount namespace");
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make private", "/");
	must(mount(rootfs, rootfs, NULL, MS_BIND, NULL), "bind", rootfs);
	for (; *binds && strcmp(*binds, "--") != 0; binds++) {
		char *colon = strchr(*binds, ':');

		if (!colon)
			continue;
		*colon = '\0';
		snprintf(where, sizeof(where), "%s/%s", rootfs, colon + 1);
		must(mount(*binds, where, NULL, MS_BIND | MS_REC, NULL), "bind", *binds);
	}
	printf("created %d\n", getpid());
	fflush(stdout);
	if (read(0, &byte, 1) != 1)
		_exit(0);
	must(chdir(rootfs), "chdir", rootfs);
}

static void join(const char *pid)
{
	char path[64];
	int root, namespace;

	snprintf(path, sizeof(path), "/proc/%s/root", pid);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	must(root, "open", path);
	snprintf(path, sizeof(path), "/proc/%s/ns/mnt", pid);
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	must(namespace, "open", path);
	must(setns(namespace, CLONE_NEWNS), "enter", path);
	must(fchdir(root), "chdir", "its root");
}

int main(int argc, char **argv)
{
	char **program = argv;

	while (*program && strcmp(*program, "--") != 0)
		program++;
	if (argc < 5 || !*program || !program[1]) {
		fprintf(stderr, "usage: enter create CGROUP ROOTFS WHAT:WHERE… -- PROGRAM, or "
		                "enter join CGROUP PID -- PROGRAM, or "
		                "enter hide CGROUP -- PROGRAM\n");
		return 2;
	}
	join_cgroup(argv[2]);
	if (strcmp(argv[1], "hide") != 0) {
		if (!strcmp(argv[1], "create"))
			create(argv[3], argv + 4);
		else
			join(argv[3]);
		must(chroot("."), "chroot", argv[3]);
		must(chdir("/"), "chdir", "/");
	}
	execv(program[1], program + 1);
	must(-1, "execute", program[1]);
	return 1;
}
