/* SPDX-License-Identifier: Apache-2.0 */
/* What a program gets for a function of the driver or of NVML: its hook or, in an elastic slice,
 * its stub (gate.h), or the function itself. */
#ifndef GPUSLICE_ANSWER_H
#define GPUSLICE_ANSWER_H

#include "entry.h"

/* Returns what it gets for a name that an object of the library exports, or NULL. */
void *answer_name(const struct library *library, const struct elf_object *object, const char *name);

/* Returns what it gets for `found`. Warns if no row of the table has the name. `cuda` is the
 * requested CUDA version, as 13010; 0 if the name has it. */
void *answer(struct library *library, void *found, const char *name, int cuda);

#endif
