/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a load that the simulation knows: where the log of errors goes. */
#ifndef FAKECUDA_JIT_H
#define FAKECUDA_JIT_H

#include "driver.h"

struct jit_log {
	char *buffer; /* or NULL */
	size_t room, used;
	void **used_out; /* or NULL */
};

struct jit_log jit_log_of(unsigned int count, const int *options, void **values);
/* Adds to the log what there is room for. */
__attribute__((format(printf, 2, 3))) void jit_say(struct jit_log *log, const char *format, ...);

#endif
