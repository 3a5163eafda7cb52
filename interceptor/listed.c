/* SPDX-License-Identifier: Apache-2.0 */
#include "listed.h"

#include "listed_names.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Texts in the order of strcmp(), and their offsets: pointers would be relocated in every
 * process. */
struct texts {
	const char *text;
	const uint16_t *at;
	size_t count;
};

static const struct texts names = {listed_names, listed_name_at,
                                   sizeof(listed_name_at) / sizeof(*listed_name_at)};
static const struct texts families = {listed_families, listed_family_at,
                                      sizeof(listed_family_at) / sizeof(*listed_family_at)};

/* Returns the number of texts not greater than `name`. */
static size_t not_behind(const struct texts *texts, const char *name)
{
	size_t low = 0, high = texts->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(texts->text + texts->at[middle], name) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* No family is a prefix of another, so only the last one not greater can be the name's. */
static bool is_of_family(const char *name)
{
	size_t n = not_behind(&families, name);
	const char *family = n ? families.text + families.at[n - 1] : NULL;

	return family && strncmp(family, name, strlen(family)) == 0;
}

bool listed(const char *name, bool any_version)
{
	size_t n = not_behind(&names, name), length = strlen(name);

	if (n && strcmp(names.text + names.at[n - 1], name) == 0)
		return true;
	if (is_of_family(name))
		return true;
	if (!any_version || n == names.count)
		return false;
	return strncmp(names.text + names.at[n], name, length) == 0 &&
	       names.text[names.at[n] + length] == '_';
}
