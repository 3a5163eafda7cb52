/* SPDX-License-Identifier: Apache-2.0 */
/* Registers, arrays, and local and shared memory. */
#define _GNU_SOURCE
#include "ptx_reader.h"

#include <stdlib.h>
#include <string.h>

#define MOST_REGISTERS 65536 /* of a kernel */
#define MOST_ALIGNMENT 256

static bool read_variable_type(struct reader *reader, struct variable *out)
{
	uint64_t elements = 1;

	*out = (struct variable){.align = 1};
	while (reader->token.kind == TOKEN_WORD && *reader->token.start == '.') {
		struct token word = reader->token;
		const struct ptx_type *type = ptx_type_named(word.start + 1, word.length - 1);

		ptx_next(reader);
		if (type) {
			if (out->type || type->kind == KIND_PREDICATE)
				return ptx_unexpected(reader);
			out->type = type;
		} else if (ptx_token_is(&word, ".align")) {
			if (!ptx_read_size(reader, &out->align))
				return false;
			if (!out->align || out->align > MOST_ALIGNMENT ||
			    out->align & (out->align - 1))
				return PTX_WRONG(reader, "error   : ", "Illegal alignment: %llu",
				                 (unsigned long long)out->align);
		} else if (ptx_token_is(&word, ".attribute")) {
			if (!ptx_expect(reader, "(") || !ptx_expect(reader, ".managed") ||
			    !ptx_expect(reader, ")"))
				return false;
		} else if (ptx_token_is(&word, ".v2")) {
			elements = 2;
		} else if (ptx_token_is(&word, ".v4")) {
			elements = 4;
		} else if (!ptx_token_is(&word, ".ptr") && !ptx_token_is(&word, ".global") &&
		           !ptx_token_is(&word, ".local") && !ptx_token_is(&word, ".shared")) {
			return ptx_unsupported(reader, &word);
		}
	}
	if (!out->type)
		return ptx_unexpected(reader);
	out->size = elements * out->type->bytes;
	if (out->align < out->size && out->size <= 16)
		out->align = out->size;
	return true;
}

static bool read_variable_name(struct reader *reader, struct variable *out)
{
	if (!ptx_read_word(reader, &out->name))
		return false;
	while (ptx_skip(reader, "[")) {
		uint64_t count = 0;

		if (!ptx_at(reader, "]") && !ptx_read_size(reader, &count))
			return false;
		if (!ptx_expect(reader, "]"))
			return false;
		if (__builtin_mul_overflow(out->size, count, &out->size))
			return PTX_WRONG(reader, "error   : ", "Variable '%.*s' is too large",
			                 ptx_length_of(&out->name), out->name.start);
	}
	return true;
}

bool ptx_read_variable(struct reader *reader, struct variable *out)
{
	return read_variable_type(reader, out) && read_variable_name(reader, out);
}

/* Places it in one of the windows of ptx_code.h, and returns its address. */
bool ptx_place(struct reader *reader, const struct variable *variable, uint64_t window,
               uint64_t *used, uint64_t *address)
{
	uint64_t offset = round_up(*used, variable->align);

	*address = window + offset;
	if (variable->size > PTX_WINDOW_BYTES || offset > PTX_WINDOW_BYTES - variable->size)
		return PTX_WRONG(reader, "error   : ", "Variable '%.*s' is too large",
		                 ptx_length_of(&variable->name), variable->name.start);
	*used = offset + variable->size;
	return true;
}

/* Numbers in braces of any depth. */
static bool read_values(struct reader *reader, const struct variable *variable,
                        struct ptx_values *values)
{
	unsigned depth = 0;

	do {
		uint64_t value;
		unsigned char *bytes;

		if (ptx_skip(reader, "{")) {
			depth++;
			continue;
		}
		if (depth && ptx_skip(reader, "}")) {
			depth--;
			continue;
		}
		if (depth && ptx_skip(reader, ","))
			continue;
		if (reader->token.kind == TOKEN_WORD)
			return ptx_unsupported(reader, &reader->token);
		if (!ptx_read_number(reader, variable->type, &value))
			return false;
		if (values->count + variable->type->bytes > variable->size)
			return PTX_WRONG(reader, "error   : ", "Too many initial values of '%.*s'",
			                 ptx_length_of(&variable->name), variable->name.start);
		bytes = realloc(values->bytes, values->count + variable->type->bytes);
		if (!bytes)
			return ptx_no_memory(reader);
		memcpy(bytes + values->count, &value, variable->type->bytes);
		values->bytes = bytes;
		values->count += variable->type->bytes;
	} while (depth && reader->token.kind != TOKEN_END);
	return depth ? ptx_unexpected(reader) : true;
}

static bool add_values(struct reader *reader, const struct variable *variable, uint64_t offset)
{
	struct ptx *ptx = reader->ptx;
	struct ptx_values *list = realloc(ptx->values, (ptx->value_count + 1) * sizeof(*list));

	if (!list)
		return ptx_no_memory(reader);
	ptx->values = list;
	list[ptx->value_count] = (struct ptx_values){.offset = offset};
	return read_values(reader, variable, &list[ptx->value_count++]);
}

/* The one variable after ".global" or ".const". image.c has its place. */
bool ptx_read_array(struct reader *reader)
{
	const struct symbol *symbol;
	struct variable variable;
	char *name;

	if (!ptx_read_variable(reader, &variable))
		return false;
	name = strndup(variable.name.start, variable.name.length);
	if (!name)
		return ptx_no_memory(reader);
	symbol = image_find(reader->arrays, name);
	free(name);
	if (!symbol)
		return ptx_unsupported(reader, &variable.name);
	variable.size = symbol->bytes;
	if (!ptx_add_name(reader, &reader->everywhere,
	                  symbol->is_managed ? NAME_MANAGED : NAME_ARRAY, &variable.name,
	                  symbol->offset, 0))
		return false;
	if (symbol->is_managed && ptx_at(reader, "="))
		return ptx_unsupported(reader, &reader->token);
	if (ptx_skip(reader, "=") && !add_values(reader, &variable, symbol->offset))
		return false;
	if (ptx_at(reader, ","))
		return ptx_unsupported(reader, &reader->token);
	return ptx_expect(reader, ";");
}

bool ptx_read_memory(struct reader *reader, struct names *names, uint64_t window, uint64_t *used)
{
	struct variable variable;
	struct name *known;
	uint64_t address;

	if (!ptx_read_variable(reader, &variable))
		return false;
	known = ptx_find_in(names, &variable.name);
	if (known && known->kind != NAME_MEMORY)
		return PTX_WRONG(reader, "error   : ", "Duplicate definition of '%.*s'",
		                 ptx_length_of(&variable.name), variable.name.start);
	if (!ptx_place(reader, &variable, window, used, &address))
		return false;
	if (window == PTX_SHARED_AT && !variable.size)
		address = PTX_DYNAMIC_AT;
	/* In another pair of braces a name can be declared again. */
	if (known)
		known->value = address;
	else if (!ptx_add_name(reader, names, NAME_MEMORY, &variable.name, address, 0))
		return false;
	return ptx_expect(reader, ";");
}

bool ptx_read_registers(struct reader *reader)
{
	struct token name;
	uint64_t count;

	while (reader->token.kind == TOKEN_WORD && *reader->token.start == '.') {
		if (!ptx_type_named(reader->token.start + 1, reader->token.length - 1) &&
		    !ptx_at(reader, ".v2") && !ptx_at(reader, ".v4"))
			return ptx_unsupported(reader, &reader->token);
		ptx_next(reader);
	}
	do {
		bool is_many;

		if (!ptx_read_word(reader, &name))
			return false;
		count = 1;
		is_many = ptx_skip(reader, "<");
		if (is_many && (!ptx_read_size(reader, &count) || !ptx_expect(reader, ">")))
			return false;
		if (count > MOST_REGISTERS || reader->kernel->registers + count > MOST_REGISTERS)
			return PTX_WRONG(reader, "error   : ", "Too many registers '%.*s'",
			                 ptx_length_of(&name), name.start);
		if (!ptx_add_name(reader, &reader->here, is_many ? NAME_REGISTERS : NAME_REGISTER,
		                  &name, reader->kernel->registers, count))
			return false;
		reader->kernel->registers += count;
	} while (ptx_skip(reader, ","));
	return ptx_expect(reader, ";");
}
