/* SPDX-License-Identifier: Apache-2.0 */
#include "listed.h"

#include <stddef.h>
#include <string.h>

#define NAME_BYTES 64

/* Not pointers, which would be relocated in every process. */
static const char names[][NAME_BYTES] = {
#define GROUP(title)
#define PASS(name, reason) #name,
#define PASS_FAMILY(pattern, reason)
#define NOT_IN_580(name, which)
#include "passes.def"
};
static const char families[][NAME_BYTES] = {
#define GROUP(title)
#define PASS(name, reason)
#define PASS_FAMILY(pattern, reason) pattern,
#define NOT_IN_580(name, which)
#include "passes.def"
};

static bool is_of_family(const char *name)
{
	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
		if (strncmp(families[i], name, strcspn(families[i], "*")) == 0)
			return true;
	}
	return false;
}

bool listed(const char *name, bool any_version)
{
	size_t length = strlen(name);

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && length < NAME_BYTES; i++) {
		char next = names[i][length];

		if ((!next || (any_version && next == '_')) && memcmp(names[i], name, length) == 0)
			return true;
	}
	return is_of_family(name);
}
