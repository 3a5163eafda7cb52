/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_EXTERNAL_H
#define FAKECUDA_EXTERNAL_H

#include "address.h"

/* Frees a mapped buffer: a range of kind RANGE_EXTERNAL. */
void external_buffer_free(struct range *range);

#endif
