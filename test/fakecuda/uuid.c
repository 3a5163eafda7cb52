/* SPDX-License-Identifier: Apache-2.0 */
#include "uuid.h"

#include <stdio.h>

void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT_BYTES])
{
	char *at = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", uuid[i]);
	}
}
