/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_PROCADDR_H
#define FAKECUDA_PROCADDR_H

#include <stdbool.h>
#include <stddef.h>

/* One form of an entry point. */
struct entry {
	const char *name; /* without a version */
	int since;        /* the CUDA version that introduced this form */
	bool per_thread;  /* NULL is the per-thread default stream */
	void (*function)(void);
};

extern const struct entry entries[];
extern const size_t entry_count;

#endif
