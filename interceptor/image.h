/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds names of __managed__ variables in images: PTX, a cubin, or a fatbin of both. Skips
 * compressed parts.
 */
#ifndef GPUSLICE_IMAGE_H
#define GPUSLICE_IMAGE_H

#include <stddef.h>

/* An image that the driver accepted without a size. */
#define IMAGE_UNKNOWN ((size_t)-1)

/* Calls `found` with each name, and perhaps other words. Reads nothing outside the `size` bytes. */
void image_managed(const void *image, size_t size,
                   void (*found)(void *data, const char *name, size_t length), void *data);

#endif
