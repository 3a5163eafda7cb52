/* SPDX-License-Identifier: Apache-2.0 */
#include "say.h"

#include "process.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void say_line(const char *format, ...)
{
	char line[512] = "gpuslice: ";
	int saved = errno;
	size_t length = strlen(line);
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
	va_end(arguments);
	if (n > 0) {
		length += (size_t)n;
		if (length > sizeof(line) - 1)
			length = sizeof(line) - 1;
		line[length++] = '\n';
		/* Not stdio, which has buffers of the program. Errors cannot be reported. */
		if (write(STDERR_FILENO, line, length) < 0)
			errno = saved;
	}
	errno = saved;
}

bool say_is_first(struct process *process, enum once once)
{
	return !(__atomic_fetch_or(&process->said, once, __ATOMIC_RELAXED) & once);
}

/* 0 not read yet, 1 no, 2 yes. A forked child inherits it. */
static unsigned char wants_debug;

/* Once: another thread may change the environment later. */
void say_begin(void)
{
	const char *wanted = getenv("GPUSLICE_DEBUG");

	if (!wants_debug)
		wants_debug = wanted && *wanted && !(wanted[0] == '0' && !wanted[1]) ? 2 : 1;
}

bool say_wants_debug(void)
{
	return wants_debug == 2;
}
