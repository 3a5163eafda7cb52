/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starter COMMAND…: a program without a dynamic loader that starts another and waits for it, as
 * `gpuslice run` does. tools.py compares what a tool sees around it with what it sees around a
 * slice.
 */
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int status = 0;
	pid_t child = fork();

	if (child == 0 && argc > 1)
		execvp(argv[1], argv + 1);
	if (child <= 0)
		_exit(127);
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
