/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKECUDA_UUID_H
#define FAKECUDA_UUID_H

#include <stdint.h>

#define UUID_TEXT_BYTES 41 /* "GPU-", 36 characters, and a 0 byte */

void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT_BYTES]);

#endif
