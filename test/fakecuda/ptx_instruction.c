/* SPDX-License-Identifier: Apache-2.0 */
/* An instruction of PTX text, and its validation. */
#include "ptx_reader.h"

#include <stdlib.h>
#include <string.h>

static bool ptx_unknown_name(struct reader *reader, const struct token *token)
{
	return PTX_WRONG(reader, "error   : ", "Unknown symbol '%.*s'", ptx_length_of(token),
	                 token->start);
}

/* A name: a register, a special one, an address, or an array. */
static bool read_named(struct reader *reader, struct ptx_operand *out)
{
	struct token token = reader->token;
	int special = ptx_special_named(token.start, token.length);
	const struct name *name;
	uint64_t more = 0;

	ptx_next(reader);
	*out = (struct ptx_operand){.kind = OPERAND_REGISTER};
	if (ptx_find_register(reader, &token, &out->value))
		return true;
	if (ptx_token_is(&token, "_")) {
		out->kind = OPERAND_NOWHERE;
		return true;
	}
	if (ptx_token_is(&token, "WARP_SZ")) {
		*out = (struct ptx_operand){.kind = OPERAND_NUMBER, .value = 32};
		return true;
	}
	if (special >= 0) {
		*out = (struct ptx_operand){.kind = OPERAND_SPECIAL, .value = (unsigned)special};
		return true;
	}
	name = ptx_find_name(reader, &token);
	if (name && name->kind == NAME_MANAGED)
		return ptx_unsupported(reader, &token);
	if (!name || (name->kind != NAME_MEMORY && name->kind != NAME_ARRAY))
		return *token.start == '%' && !name && token.length > 1 &&
		               memchr(token.start, '.', token.length)
		           ? ptx_unsupported(reader, &token)
		           : ptx_unknown_name(reader, &token);
	if (ptx_skip(reader, "+") && !ptx_read_number(reader, NULL, &more))
		return false;
	if (name->kind == NAME_ARRAY)
		reader->kernel->uses_arrays = true;
	*out =
	    (struct ptx_operand){.kind = name->kind == NAME_ARRAY ? OPERAND_ARRAY : OPERAND_NUMBER,
	                         .value = name->value + more};
	return true;
}

static bool read_value(struct reader *reader, const struct ptx_instruction *instruction,
                       struct ptx_operand *out)
{
	bool negated = ptx_skip(reader, "!");

	if (reader->token.kind == TOKEN_WORD) {
		if (!read_named(reader, out))
			return false;
		out->negated = negated;
		return true;
	}
	*out = (struct ptx_operand){.kind = OPERAND_NUMBER};
	return ptx_read_number(reader, instruction->from ? instruction->from : instruction->type,
	                       &out->value);
}

static bool has_room(struct reader *reader, const struct ptx_instruction *instruction)
{
	return instruction->count < PTX_OPERANDS || ptx_unexpected(reader);
}

/* "[base+offset]", after its bracket. */
static bool read_address(struct reader *reader, struct ptx_instruction *into)
{
	struct ptx_operand *base = &into->operands[into->count];

	if (into->has_address || !has_room(reader, into))
		return ptx_unexpected(reader);
	into->has_address = true;
	into->address = into->count++;
	if (reader->token.kind == TOKEN_WORD) {
		if (!read_named(reader, base))
			return false;
	} else {
		*base = (struct ptx_operand){.kind = OPERAND_NUMBER};
		if (!ptx_read_number(reader, NULL, &base->value))
			return false;
	}
	if (ptx_skip(reader, "+") && !ptx_read_number(reader, NULL, &into->offset))
		return false;
	return ptx_expect(reader, "]");
}

/* One operand, or a group in braces: the first group's size distinguishes a vector. */
static bool read_operand(struct reader *reader, struct ptx_instruction *into)
{
	unsigned before = into->count;
	bool braces = ptx_skip(reader, "{");

	if (!braces && ptx_skip(reader, "["))
		return read_address(reader, into);
	do {
		if (!has_room(reader, into) ||
		    !read_value(reader, into, &into->operands[into->count]))
			return false;
		into->count++;
	} while (braces ? ptx_skip(reader, ",") : into->op == OP_SETP && ptx_skip(reader, "|"));
	if (!before)
		into->first = into->count;
	return !braces || ptx_expect(reader, "}");
}

static bool read_branch(struct reader *reader, struct ptx_instruction *into)
{
	struct token label;
	const struct name *name;

	if (!ptx_read_word(reader, &label))
		return false;
	name = ptx_find_in(&reader->here, &label);
	if (name && name->kind == NAME_LABEL) {
		into->target = name->value;
		return true;
	}
	if (name && name->kind != NAME_LABEL_AHEAD)
		return ptx_unknown_name(reader, &label);
	/* An entry for each branch, until the label or the kernel's end. */
	return ptx_add_name(reader, &reader->here, NAME_LABEL_AHEAD, &label, reader->kernel->length,
	                    label.line);
}

/* "(returned), name, (given)": only functions of the driver itself can be called. */
static bool read_call(struct reader *reader)
{
	struct token function;
	const struct name *name;

	if (ptx_skip(reader, "(")) {
		while (reader->token.kind != TOKEN_END && !ptx_at(reader, ")"))
			ptx_next(reader);
		if (!ptx_expect(reader, ")") || !ptx_expect(reader, ","))
			return false;
	}
	if (!ptx_read_word(reader, &function))
		return false;
	name = ptx_find_name(reader, &function);
	if (!name)
		return ptx_unknown_name(reader, &function);
	if (name->kind != NAME_FOREIGN)
		return ptx_unsupported(reader, &function);
	while (reader->token.kind != TOKEN_END && !ptx_at(reader, ";"))
		ptx_next(reader);
	return true;
}

/* "ld.global.u32" */
static bool read_opcode(struct reader *reader, struct ptx_instruction *into)
{
	struct token word;
	const char *part, *end;
	bool is_first = true;

	if (!ptx_read_word(reader, &word))
		return false;
	end = word.start + word.length;
	for (part = word.start; part <= end; is_first = false) {
		size_t length = strcspn(part, ".");
		enum ptx_word kind;

		if (part + length > end)
			length = (size_t)(end - part);
		kind = is_first ? ptx_opcode(part, length, into) : ptx_modifier(part, length, into);
		if (kind == WORD_UNSUPPORTED || (kind == WORD_UNKNOWN && memchr(part, ':', length)))
			return ptx_unsupported(reader, &word);
		if (kind == WORD_UNKNOWN && is_first)
			return PTX_WRONG(
			    reader, "error   : ", "Not a name of any known instruction: '%.*s'",
			    ptx_length_of(&word), word.start);
		if (kind == WORD_UNKNOWN)
			return PTX_WRONG(reader,
			                 "error   : ", "Illegal modifier for instruction '%.*s'",
			                 ptx_length_of(&word), word.start);
		part += length + 1;
	}
	return true;
}

/* Written operands are registers or "_", and read ones are not "_". */
static bool is_written(const struct ptx_instruction *instruction, unsigned index)
{
	switch (instruction->op) {
	case OP_ST:
	case OP_RED:
	case OP_BAR:
		return false;
	default:
		return index < instruction->first;
	}
}

static bool needs_type(enum ptx_op op)
{
	return op < OP_BRA;
}

/* True if the instruction exists for these types. */
static bool type_fits(const struct ptx_instruction *in)
{
	enum ptx_kind kind = in->type ? (enum ptx_kind)in->type->kind : KIND_BITS;
	bool is_number = kind != KIND_PREDICATE && in->op != OP_LD && in->op != OP_ST;

	if (!needs_type(in->op))
		return !in->type;
	if (!in->type || (in->from && in->op != OP_CVT))
		return false;
	switch (in->op) {
	case OP_MOV:
	case OP_AND:
	case OP_OR:
	case OP_XOR:
	case OP_NOT:
		return in->op == OP_MOV || kind != KIND_FLOAT;
	case OP_CVT:
		return in->from && is_number && in->from->kind != KIND_PREDICATE;
	case OP_FMA:
	case OP_SQRT:
	case OP_RCP:
		return kind == KIND_FLOAT;
	case OP_REM:
	case OP_SHL:
	case OP_SHR:
		return is_number && kind != KIND_FLOAT;
	case OP_MUL:
	case OP_MAD:
		return is_number && (in->part == PART_LOW || kind != KIND_FLOAT) &&
		       (in->part != PART_WIDE || in->type->bytes <= 4);
	case OP_SETP:
		return is_number && in->compare != COMPARE_NONE &&
		       (in->compare < COMPARE_NUM || kind == KIND_FLOAT);
	case OP_ATOM:
	case OP_RED:
		return is_number && in->join != JOIN_NONE && in->type->bytes >= 4;
	default:
		return kind != KIND_PREDICATE;
	}
}

/* Checks the place of the address, and the number of operands before and after it. */
static bool shape_fits(const struct ptx_instruction *in)
{
	switch (in->op) {
	case OP_LD:
		return in->has_address && in->address == in->first && in->count == in->first + 1 &&
		       in->first != 3;
	case OP_ST:
		return in->has_address && in->address == 0 && in->count != 4;
	case OP_RED:
		return in->has_address && in->address == 0;
	case OP_ATOM:
		return in->has_address && in->address == 1 && in->first == 1 &&
		       in->count == (in->join == JOIN_CAS ? 4u : 3u);
	case OP_MOV:
		return !in->has_address && (in->count == 2 || in->count == 3 || in->count == 5) &&
		       (in->first == 1 || in->count - in->first == 1);
	case OP_SETP:
		return !in->has_address && in->first <= 2 &&
		       in->count == in->first + (in->join == JOIN_NONE ? 2u : 3u);
	default:
		return !in->has_address && (in->first == 1 || !in->count);
	}
}

static bool check(struct reader *reader, const struct token *word, struct ptx_instruction *into)
{
	bool fits = ptx_count_fits(into) && shape_fits(into);

	for (unsigned i = 0; i < into->count; i++) {
		enum ptx_operand_kind kind = into->operands[i].kind;

		if (is_written(into, i) && kind != OPERAND_REGISTER && kind != OPERAND_NOWHERE)
			fits = false;
		if (!is_written(into, i) && kind == OPERAND_NOWHERE)
			fits = false;
	}
	if (!fits)
		return PTX_WRONG(reader, "error   : ", "Arguments mismatch for instruction '%.*s'",
		                 ptx_length_of(word), word->start);
	if (!type_fits(into))
		return PTX_WRONG(reader,
		                 "error   : ", "Unexpected instruction types specified for '%.*s'",
		                 ptx_length_of(word), word->start);
	if (!into->from)
		into->from = into->type;
	return true;
}

bool ptx_add_instruction(struct reader *reader, const struct ptx_instruction *instruction)
{
	struct ptx_kernel *kernel = reader->kernel;

	if (kernel->length == reader->room) {
		size_t room = reader->room ? 2 * reader->room : 16;
		struct ptx_instruction *code = realloc(kernel->code, room * sizeof(*code));

		if (!code)
			return ptx_no_memory(reader);
		kernel->code = code;
		reader->room = room;
	}
	kernel->code[kernel->length++] = *instruction;
	return true;
}

static bool read_guard(struct reader *reader, struct ptx_instruction *into)
{
	struct token name;
	uint64_t guard;

	into->guarded = true;
	into->guard_negated = ptx_skip(reader, "!");
	if (!ptx_read_word(reader, &name))
		return false;
	if (!ptx_find_register(reader, &name, &guard))
		return ptx_unknown_name(reader, &name);
	into->guard = (unsigned)guard;
	return true;
}

bool ptx_read_instruction(struct reader *reader)
{
	struct ptx_instruction instruction = {.first = 0};
	struct token word;

	if (ptx_skip(reader, "@") && !read_guard(reader, &instruction))
		return false;
	word = reader->token;
	if (!read_opcode(reader, &instruction))
		return false;
	if (instruction.op == OP_BRA) {
		if (!read_branch(reader, &instruction))
			return false;
	} else if (instruction.op == OP_CALL) {
		if (!read_call(reader))
			return false;
	} else if (!ptx_at(reader, ";")) {
		do {
			if (!read_operand(reader, &instruction))
				return false;
		} while (ptx_skip(reader, ","));
	}
	if (!ptx_expect(reader, ";"))
		return false;
	return check(reader, &word, &instruction) && ptx_add_instruction(reader, &instruction);
}
