/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces execl (ld's --wrap) in the programs that test/aarch64.sh runs under qemu-user. A program
 * that executes /proc/self/exe would have the host's kernel run a file for aarch64. GPUSLICE_ANEW
 * names a file that the host can run instead.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 64

int execl_anew(const char *path, char *argument, ...);

int execl_anew(const char *path, char *argument, ...)
{
	const char *anew = getenv("GPUSLICE_ANEW");
	char *arguments[MOST + 1] = {NULL};
	va_list rest;

	va_start(rest, argument);
	for (int i = 0; argument && i < MOST; i++) {
		arguments[i] = argument;
		argument = va_arg(rest, char *);
	}
	va_end(rest);
	return execv(anew ? anew : path, arguments);
}
