/* SPDX-License-Identifier: Apache-2.0 */
#include "jit.h"

#include <stdarg.h>
#include <stdio.h>

struct jit_log jit_log_of(unsigned int count, const int *options, void **values)
{
	struct jit_log log = {0};

	for (unsigned int i = 0; options && values && i < count; i++) {
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
			log.buffer = values[i];
		if (options[i] != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			continue;
		log.room = (unsigned int)(uintptr_t)values[i];
		log.used_out = &values[i];
		*log.used_out = NULL;
	}
	if (log.buffer && log.room)
		log.buffer[0] = 0;
	else
		log.room = 0;
	return log;
}

void jit_say(struct jit_log *log, const char *format, ...)
{
	va_list arguments;
	int length;

	if (log->used + 1 >= log->room)
		return;
	va_start(arguments, format);
	length = vsnprintf(log->buffer + log->used, log->room - log->used, format, arguments);
	va_end(arguments);
	if (length < 0)
		return;
	log->used += (size_t)length;
	if (log->used > log->room - 1)
		log->used = log->room - 1;
	if (log->used_out)
		*log->used_out = (void *)(uintptr_t)log->used;
}
