/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool truth, const char *what)
{
	if (truth)
		return;
	fprintf(stderr, "not so: %s\n", what);
	abort();
}

#endif
