/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the driver reviewed as needing no hook: the rows of passes.def. */
#ifndef GPUSLICE_LISTED_H
#define GPUSLICE_LISTED_H

#include <stdbool.h>

/* Reports whether there is a row of that name, or with any_version, of a version of it. */
bool listed(const char *name, bool any_version);

#endif
