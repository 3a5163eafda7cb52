/* SPDX-License-Identifier: Apache-2.0 */
/* The names in PTX text. */
#include "ptx_reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct name *ptx_find_in(const struct names *names, const struct token *token)
{
	for (size_t i = 0; i < names->count; i++) {
		struct name *name = &names->list[i];

		if (name->kind != NAME_REGISTERS && name->length == token->length &&
		    memcmp(name->start, token->start, token->length) == 0)
			return name;
	}
	return NULL;
}

struct name *ptx_find_name(const struct reader *reader, const struct token *token)
{
	struct name *name = ptx_find_in(&reader->here, token);

	return name ? name : ptx_find_in(&reader->everywhere, token);
}

/* "%r12" of "%r<16>". */
bool ptx_find_register(const struct reader *reader, const struct token *token, uint64_t *out)
{
	const struct name *name = ptx_find_in(&reader->here, token);

	if (name) {
		*out = name->value;
		return name->kind == NAME_REGISTER;
	}
	for (size_t i = 0; i < reader->here.count; i++) {
		const char *end = token->start + token->length;
		uint64_t index = 0;

		name = &reader->here.list[i];
		if (name->kind != NAME_REGISTERS || name->length >= token->length ||
		    memcmp(name->start, token->start, name->length) != 0)
			continue;
		for (const char *c = token->start + name->length; c < end && index < name->count;
		     c++)
			index = isdigit((unsigned char)*c) ? index * 10 + (unsigned)(*c - '0')
			                                   : name->count;
		if (index < name->count) {
			*out = name->value + index;
			return true;
		}
	}
	return false;
}

bool ptx_add_name(struct reader *reader, struct names *names, enum name_kind kind,
                  const struct token *token, uint64_t value, uint64_t count)
{
	struct name *list;

	/* Capacity doubles, so that there are few reallocs. */
	if (!(names->count & (names->count - 1)) || !names->count) {
		list = realloc(names->list, (names->count ? 2 * names->count : 1) * sizeof(*list));
		if (!list)
			return ptx_no_memory(reader);
		names->list = list;
	}
	names->list[names->count++] = (struct name){.kind = kind,
	                                            .start = token->start,
	                                            .length = token->length,
	                                            .value = value,
	                                            .count = count};
	return true;
}
