/* SPDX-License-Identifier: Apache-2.0 */
/* The supported options of a load: the buffers for the log of errors. */
#ifndef FAKECUDA_JIT_H
#define FAKECUDA_JIT_H

#include "driver.h"

struct jit_log {
	char *buffer; /* or NULL */
	size_t room, used;
	void **used_out; /* or NULL */
};

struct jit_log jit_log_of(unsigned int count, const int *options, void **values);
/* Adds to the log as much as there is room for. */
__attribute__((format(printf, 2, 3))) void jit_say(struct jit_log *log, const char *format, ...);

#endif
