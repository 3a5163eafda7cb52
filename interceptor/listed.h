/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the driver's functions that pass were looked at: the rows of passes.def. */
#ifndef GPUSLICE_LISTED_H
#define GPUSLICE_LISTED_H

#include <stdbool.h>

/* Whether a row is of that name; with any_version, of a version of it. */
bool listed(const char *name, bool any_version);

#endif
