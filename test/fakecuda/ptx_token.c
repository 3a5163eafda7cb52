/* SPDX-License-Identifier: Apache-2.0 */
/* Words, numbers and signs of PTX text, and the messages about wrong ones. */
#define _GNU_SOURCE
#include "ptx_reader.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool ptx_wrong(struct reader *reader, CUresult result)
{
	if (reader->result == CUDA_SUCCESS)
		reader->result = result;
	reader->at = "";
	reader->token = (struct token){.kind = TOKEN_END, .start = "", .line = reader->line};
	return false;
}

int ptx_length_of(const struct token *token)
{
	return token->length < 100 ? (int)token->length : 100;
}

bool ptx_unexpected(struct reader *reader)
{
	return PTX_WRONG(reader, "fatal   : ", "Parsing error near '%.*s': syntax error",
	                 ptx_length_of(&reader->token), reader->token.start);
}

bool ptx_unsupported(struct reader *reader, const struct token *what)
{
	if (reader->result == CUDA_SUCCESS)
		jit_say(reader->log, "line %u: the simulated driver does not carry out '%.*s'\n",
		        what->line, ptx_length_of(what), what->start);
	return ptx_wrong(reader, CUDA_ERROR_NOT_SUPPORTED);
}

bool ptx_no_memory(struct reader *reader)
{
	return ptx_wrong(reader, CUDA_ERROR_OUT_OF_MEMORY);
}

static bool is_word_start(char c)
{
	return isalpha((unsigned char)c) || (c && strchr("_$%.", c));
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("_$%.", c));
}

static void skip_space(struct reader *reader)
{
	const char *at = reader->at;

	for (;;) {
		if (isspace((unsigned char)*at)) {
			reader->line += *at++ == '\n';
		} else if (at[0] == '/' && at[1] == '/') {
			at += strcspn(at, "\n");
		} else if (at[0] == '/' && at[1] == '*') {
			for (at += 2; *at && !(at[0] == '*' && at[1] == '/'); at++)
				reader->line += *at == '\n';
			at += *at ? 2 : 0;
		} else {
			break;
		}
	}
	reader->at = at;
}

void ptx_next(struct reader *reader)
{
	struct token *token = &reader->token;
	const char *at;

	skip_space(reader);
	at = reader->at;
	*token = (struct token){.kind = TOKEN_SIGN, .start = at, .line = reader->line};
	if (!*at) {
		token->kind = TOKEN_END;
	} else if (is_word_start(*at)) {
		token->kind = TOKEN_WORD;
		/* "ld.global.L1::no_allocate" is one word. */
		while (is_word(*at) || (at[0] == ':' && at[1] == ':' && is_word_start(at[2])))
			at += *at == ':' ? 2 : 1;
	} else if (isdigit((unsigned char)*at)) {
		bool is_hex = at[0] == '0' && (at[1] == 'x' || at[1] == 'X');

		token->kind = TOKEN_NUMBER;
		while (isalnum((unsigned char)*at) || *at == '.' ||
		       (!is_hex && (*at == '-' || *at == '+') && (at[-1] == 'e' || at[-1] == 'E')))
			at++;
	} else if (*at == '"') {
		token->kind = TOKEN_TEXT;
		at += 1 + strcspn(at + 1, "\"\n");
		at += *at == '"';
	} else {
		at++;
	}
	token->length = (size_t)(at - token->start);
	reader->at = at;
}

bool ptx_token_is(const struct token *token, const char *text)
{
	return token->length == strlen(text) && memcmp(token->start, text, token->length) == 0;
}

bool ptx_at(const struct reader *reader, const char *text)
{
	return ptx_token_is(&reader->token, text);
}

bool ptx_skip(struct reader *reader, const char *text)
{
	if (!ptx_at(reader, text) || reader->token.kind == TOKEN_TEXT)
		return false;
	ptx_next(reader);
	return true;
}

bool ptx_expect(struct reader *reader, const char *text)
{
	return ptx_skip(reader, text) || ptx_unexpected(reader);
}

bool ptx_read_word(struct reader *reader, struct token *out)
{
	*out = reader->token;
	if (out->kind != TOKEN_WORD)
		return ptx_unexpected(reader);
	ptx_next(reader);
	return true;
}

/* With or without a "U" suffix. */
bool ptx_read_size(struct reader *reader, uint64_t *out)
{
	char *end;

	if (reader->token.kind != TOKEN_NUMBER)
		return ptx_unexpected(reader);
	*out = strtoull(reader->token.start, &end, 0);
	end += *end == 'U';
	if (end != reader->token.start + reader->token.length)
		return ptx_unexpected(reader);
	ptx_next(reader);
	return true;
}

bool ptx_read_number(struct reader *reader, const struct ptx_type *type, uint64_t *out)
{
	bool negative = ptx_skip(reader, "-");
	const struct token *token = &reader->token;
	const char *start = token->start;
	char *end;

	if (token->kind != TOKEN_NUMBER)
		return ptx_unexpected(reader);
	if (start[0] == '0' && start[1] && strchr("fFdD", start[1])) {
		*out = strtoull(start + 2, &end, 16);
		if (negative)
			*out ^= (uint64_t)1 << (tolower(start[1]) == 'f' ? 31 : 63);
	} else if (type && type->kind == KIND_FLOAT) {
		double value = negative ? -strtod(start, &end) : strtod(start, &end);
		float narrow = (float)value;

		*out = 0;
		if (type->bytes == sizeof(narrow))
			memcpy(out, &narrow, sizeof(narrow));
		else
			memcpy(out, &value, sizeof(value));
	} else {
		*out = strtoull(start, &end, 0);
		end += *end == 'U';
		if (negative)
			*out = -*out;
	}
	if (end != start + token->length)
		return ptx_unexpected(reader);
	ptx_next(reader);
	return true;
}
