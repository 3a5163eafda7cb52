/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_ALLOC_H
#define FAKECUDA_ALLOC_H

#include "address.h"

/* Frees memory of cuMemAlloc: a range of kind RANGE_DEVICE. */
void allocation_free(struct range *range);
/* Makes its memory an object of the machine and returns that; 0 if there is no room. */
uint64_t allocation_share(struct range *range);

/* external.c. Frees a mapped buffer: a range of kind RANGE_EXTERNAL. */
void external_buffer_free(struct range *range);

#endif
