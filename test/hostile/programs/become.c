/* SPDX-License-Identifier: Apache-2.0 */
/*
 * become PROGRAM [ARGUMENT…]: creates a user namespace as the current user, prints a line, waits
 * for a line, and becomes the program as the namespace's root. The reader of the first line maps
 * the namespace's users, as newuidmap does.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char c;

	if (argc < 2 || unshare(CLONE_NEWUSER) != 0) {
		perror("become: unshare");
		return 1;
	}
	puts("unshared");
	fflush(stdout);
	if (read(0, &c, 1) != 1 || setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0) {
		perror("become: the namespace's root");
		return 1;
	}
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 1;
}
