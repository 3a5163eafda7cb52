/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd attach|fork: forks until it may not, has each child ask for a place in the ledger or do
 * nothing, kills them all and prints how many there were.
 */
#include "attach.h"
#include "ledger.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void ask(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX,
	                         .sun_path = ATTACH_CONTAINER_DIR "/" ATTACH_SOCKET_NAME};
	struct attach_request request = {.magic = ATTACH_MAGIC,
	                                 .version = ATTACH_VERSION,
	                                 .op = ATTACH_OP_ATTACH,
	                                 .layout = LEDGER_LAYOUT};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
	    send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request))
		(void)!recv(fd, &request, sizeof(request), 0);
	close(fd);
}

int main(int argc, char **argv)
{
	enum { MOST = 4096 };
	static pid_t children[MOST];
	int attach = argc > 1 && !strcmp(argv[1], "attach"), count = 0;

	while (count < MOST && (children[count] = fork()) >= 0) {
		if (children[count++] == 0) {
			if (attach)
				ask();
			for (;;)
				pause();
		}
	}
	if (attach)
		usleep(100000); /* some have asked, and others are about to */
	for (int i = 0; i < count; i++)
		kill(children[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	printf("%d\n", count);
	return count == MOST;
}
