/* SPDX-License-Identifier: Apache-2.0 */
/* sudo: set-user-ID of root; becomes root altogether, says so, and stays. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	if (setresuid(0, 0, 0) != 0) {
		perror("sudo");
		return 1;
	}
	puts("root");
	fflush(stdout);
	for (;;)
		pause();
}
