/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interceptor's only output: lines on standard error, if a person must know why memory is
 * refused, or with GPUSLICE_DEBUG=1.
 */
#ifndef GPUSLICE_SAY_H
#define GPUSLICE_SAY_H

#include <stdbool.h>
#include <stdint.h>

struct process;

enum once {
	ONCE_NO_DIRECTORY = 1 << 0,
	ONCE_ATTACH_FAILED = 1 << 1,
	ONCE_NOT_MEMBER = 1 << 2,
	ONCE_FULL = 1 << 3,
	ONCE_CLOSED = 1 << 4,
	ONCE_NO_DEVICE = 1 << 5,
	ONCE_DAMAGED = 1 << 6,
	ONCE_UNKNOWN_VERSION = 1 << 7,
	ONCE_UNLISTED = 1 << 8,
	ONCE_LENT = 1 << 9,
	ONCE_STAYS = 1 << 10,
};

/* Prints "gpuslice: " and the message in one write. */
void say_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same once per process for each `once`. */
#define say_once(process, once, ...)                                                               \
	do {                                                                                       \
		if (say_is_first(process, once))                                                   \
			say_line(__VA_ARGS__);                                                     \
	} while (0)
bool say_is_first(struct process *process, enum once once);

/* Reads the environment, at the first attach. */
void say_begin(void);

/* Reports whether GPUSLICE_DEBUG is set to something other than 0. */
bool say_wants_debug(void);

#define say_debug(...)                                                                             \
	do {                                                                                       \
		if (say_wants_debug())                                                             \
			say_line(__VA_ARGS__);                                                     \
	} while (0)

#endif
