/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the names of __managed__ variables in images of code: PTX, a cubin, or a fatbin of both.
 * Compressed parts of a fatbin are not read.
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
