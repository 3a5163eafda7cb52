/* SPDX-License-Identifier: Apache-2.0 */
/* Images of code: any bytes, without reads beyond them. */
#include "image.h"

#include <stdint.h>

static volatile char sink;

static void found(void *data, const char *name, size_t length)
{
	(void)data;
	for (size_t i = 0; i < length; i++)
		sink = name[i];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	image_managed(data, size, found, NULL);
	return 0;
}
