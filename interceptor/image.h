/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images of code, as far as they name variables that are declared __managed__: PTX, a cubin, or a
 * fatbin of both. What a fatbin has in compressed form is not read.
 */
#ifndef GPUSLICE_IMAGE_H
#define GPUSLICE_IMAGE_H

#include <stddef.h>

/* The size of an image that the driver was given without one, and has accepted. */
#define IMAGE_UNKNOWN ((size_t)-1)

/* Call `found` with each name, maybe with some that are no variable's. Reads nothing outside the
 * `size` bytes, whatever they say. */
void image_managed(const void *image, size_t size,
                   void (*found)(void *data, const char *name, size_t length), void *data);

#endif
