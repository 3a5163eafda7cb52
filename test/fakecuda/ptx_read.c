/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels and modules of PTX text. A name is valid in its whole kernel, across braces. */
#define _GNU_SOURCE
#include "ptx_reader.h"

#include <stdlib.h>
#include <string.h>

/* Of driver 580 (CUDA 13.0), and of the card. */
#define VERSION_MAJOR 9
#define VERSION_MINOR 0
#define CARD_TARGET 90

/* True if the word just read is the name of a label. */
static bool read_label(struct reader *reader, const struct token *word)
{
	struct name *list = reader->here.list;

	if (!ptx_skip(reader, ":"))
		return false;
	for (size_t i = 0; i < reader->here.count; i++)
		if (list[i].length == word->length &&
		    memcmp(list[i].start, word->start, word->length) == 0) {
			if (list[i].kind != NAME_LABEL_AHEAD)
				return PTX_WRONG(reader,
				                 "error   : ", "Duplicate definition of '%.*s'",
				                 ptx_length_of(word), word->start);
			reader->kernel->code[list[i].value].target = reader->kernel->length;
			list[i].length = 0;
		}
	return ptx_add_name(reader, &reader->here, NAME_LABEL, word, reader->kernel->length, 0);
}

/* ".loc 1 2 3" and similar: to the end of the line. */
static void skip_line(struct reader *reader)
{
	unsigned line = reader->token.line;

	while (reader->token.kind != TOKEN_END && reader->token.line == line)
		ptx_next(reader);
}

static bool read_directive(struct reader *reader)
{
	struct token word = reader->token;

	if (ptx_at(reader, ".loc") || ptx_at(reader, ".file")) {
		skip_line(reader);
		return true;
	}
	ptx_next(reader);
	if (ptx_token_is(&word, ".reg"))
		return ptx_read_registers(reader);
	if (ptx_token_is(&word, ".local") || ptx_token_is(&word, ".param"))
		return ptx_read_memory(reader, &reader->here, PTX_LOCAL_AT,
		                       &reader->kernel->local_bytes);
	if (ptx_token_is(&word, ".shared"))
		return ptx_read_memory(reader, &reader->here, PTX_SHARED_AT,
		                       &reader->kernel->shared_bytes);
	if (ptx_token_is(&word, ".pragma")) {
		ptx_next(reader);
		return ptx_expect(reader, ";");
	}
	return ptx_unsupported(reader, &word);
}

static bool read_statement(struct reader *reader)
{
	struct reader before = *reader;
	struct token word = reader->token;

	if (ptx_skip(reader, ";"))
		return true;
	if (word.kind == TOKEN_WORD && *word.start == '.')
		return read_directive(reader);
	if (word.kind == TOKEN_WORD) {
		ptx_next(reader);
		if (ptx_at(reader, ":"))
			return read_label(reader, &word);
		reader->at = before.at;
		reader->line = before.line;
		reader->token = before.token;
	} else if (!ptx_at(reader, "@")) {
		return ptx_unexpected(reader);
	}
	return ptx_read_instruction(reader);
}

static bool end_kernel(struct reader *reader)
{
	static const struct ptx_instruction end = {.op = OP_EXIT};

	for (size_t i = 0; i < reader->here.count; i++) {
		const struct name *name = &reader->here.list[i];

		if (name->kind == NAME_LABEL_AHEAD && name->length) {
			reader->token.line = (unsigned)name->count;
			return PTX_WRONG(reader, "error   : ", "Unknown symbol '%.*s'",
			                 (int)(name->length < 100 ? name->length : 100),
			                 name->start);
		}
	}
	return ptx_add_instruction(reader, &end);
}

static bool read_body(struct reader *reader)
{
	unsigned depth = 1;

	while (depth) {
		if (ptx_skip(reader, "{"))
			depth++;
		else if (ptx_skip(reader, "}"))
			depth--;
		else if (!read_statement(reader))
			return reader->result == CUDA_SUCCESS ? ptx_unexpected(reader) : false;
	}
	return end_kernel(reader);
}

static bool read_parameters(struct reader *reader)
{
	struct ptx_kernel *kernel = reader->kernel;

	if (!ptx_skip(reader, "(") || ptx_skip(reader, ")"))
		return reader->result == CUDA_SUCCESS;
	do {
		struct ptx_parameter *list =
		    realloc(kernel->parameters, (kernel->parameter_count + 1) * sizeof(*list));
		struct variable variable;
		uint64_t used = kernel->parameter_bytes, address;

		if (!list)
			return ptx_no_memory(reader);
		kernel->parameters = list;
		if (!ptx_expect(reader, ".param") || !ptx_read_variable(reader, &variable) ||
		    !ptx_place(reader, &variable, PTX_PARAMETERS_AT, &used, &address) ||
		    !ptx_add_name(reader, &reader->here, NAME_MEMORY, &variable.name, address, 0))
			return false;
		kernel->parameter_bytes = used;
		list[kernel->parameter_count++] = (struct ptx_parameter){
		    .offset = address - PTX_PARAMETERS_AT, .size = variable.size};
	} while (ptx_skip(reader, ","));
	return ptx_expect(reader, ")");
}

/* ".maxntid 256, 1, 1" and similar, between parameters and body. */
static void skip_tuning(struct reader *reader)
{
	while (reader->token.kind != TOKEN_END && !ptx_at(reader, "{") && !ptx_at(reader, ";"))
		ptx_next(reader);
}

static bool read_kernel(struct reader *reader)
{
	struct ptx *ptx = reader->ptx;
	struct ptx_kernel *list = realloc(ptx->kernels, (ptx->kernel_count + 1) * sizeof(*list));
	struct token name;

	if (!list)
		return ptx_no_memory(reader);
	ptx->kernels = list;
	if (!ptx_read_word(reader, &name))
		return false;
	reader->kernel = &list[ptx->kernel_count];
	*reader->kernel = (struct ptx_kernel){.name = strndup(name.start, name.length),
	                                      .shared_bytes = reader->module_shared};
	if (!reader->kernel->name)
		return ptx_no_memory(reader);
	ptx->kernel_count++;
	reader->here.count = 0;
	reader->room = 0;
	if (!read_parameters(reader))
		return false;
	skip_tuning(reader);
	if (ptx_skip(reader, ";"))
		return end_kernel(reader);
	return ptx_expect(reader, "{") && read_body(reader);
}

static bool skip_braces(struct reader *reader)
{
	unsigned depth = 0;

	do {
		if (ptx_at(reader, "{"))
			depth++;
		else if (ptx_at(reader, "}"))
			depth--;
		ptx_next(reader);
	} while (depth && reader->token.kind != TOKEN_END);
	return depth ? ptx_unexpected(reader) : true;
}

static bool read_function(struct reader *reader)
{
	struct token name;
	bool is_here;

	if (ptx_skip(reader, "(")) {
		while (reader->token.kind != TOKEN_END && !ptx_at(reader, ")"))
			ptx_next(reader);
		if (!ptx_expect(reader, ")"))
			return false;
	}
	if (!ptx_read_word(reader, &name))
		return false;
	skip_tuning(reader);
	is_here = ptx_at(reader, "{");
	if (!ptx_find_in(&reader->everywhere, &name) &&
	    !ptx_add_name(reader, &reader->everywhere, is_here ? NAME_FUNCTION : NAME_FOREIGN,
	                  &name, 0, 0))
		return false;
	return is_here ? skip_braces(reader) : ptx_expect(reader, ";");
}

/* --- modules ---------------------------------------------------------------------------------- */

static bool read_version(struct reader *reader)
{
	struct token token = reader->token;
	unsigned long major, minor = 0;
	char *end;

	if (token.kind != TOKEN_NUMBER)
		return ptx_unexpected(reader);
	major = strtoul(token.start, &end, 10);
	if (*end == '.')
		minor = strtoul(end + 1, &end, 10);
	if (end != token.start + token.length)
		return ptx_unexpected(reader);
	ptx_next(reader);
	if (major < VERSION_MAJOR || (major == VERSION_MAJOR && minor <= VERSION_MINOR))
		return true;
	if (reader->result == CUDA_SUCCESS)
		jit_say(reader->log,
		        "ptxas application ptx input, line %u; fatal   : Unsupported .version "
		        "%lu.%lu; current version is '%d.%d'\n",
		        token.line, major, minor, VERSION_MAJOR, VERSION_MINOR);
	return ptx_wrong(reader, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

static bool read_target(struct reader *reader)
{
	struct token token;

	do {
		if (!ptx_read_word(reader, &token))
			return false;
		if (token.length < 4 || memcmp(token.start, "sm_", 3) != 0)
			continue;
		if (strtoul(token.start + 3, NULL, 10) <= CARD_TARGET)
			continue;
		if (reader->result == CUDA_SUCCESS)
			jit_say(reader->log, "ptxas fatal   : SM version specified by .target is "
			                     "higher than default SM version assumed\n");
		return ptx_wrong(reader, CUDA_ERROR_INVALID_PTX); /* as on an H100 */
	} while (ptx_skip(reader, ","));
	return true;
}

static bool read_module_directive(struct reader *reader)
{
	struct token word = reader->token;
	uint64_t bits;

	if (ptx_at(reader, ".file") || ptx_at(reader, ".loc")) {
		skip_line(reader);
		return true;
	}
	if (word.kind != TOKEN_WORD)
		return ptx_unexpected(reader);
	ptx_next(reader);
	if (ptx_token_is(&word, ".version"))
		return read_version(reader);
	if (ptx_token_is(&word, ".target"))
		return read_target(reader);
	if (ptx_token_is(&word, ".address_size"))
		return ptx_read_size(reader, &bits) &&
		       (bits == 64 || PTX_WRONG(reader, "fatal   : ", "Invalid address size: %llu",
		                                (unsigned long long)bits));
	if (ptx_token_is(&word, ".visible") || ptx_token_is(&word, ".extern") ||
	    ptx_token_is(&word, ".weak") || ptx_token_is(&word, ".common"))
		return true;
	if (ptx_token_is(&word, ".entry"))
		return read_kernel(reader);
	if (ptx_token_is(&word, ".func"))
		return read_function(reader);
	if (ptx_token_is(&word, ".global") || ptx_token_is(&word, ".const"))
		return ptx_read_array(reader);
	if (ptx_token_is(&word, ".shared"))
		return ptx_read_memory(reader, &reader->everywhere, PTX_SHARED_AT,
		                       &reader->module_shared);
	if (ptx_token_is(&word, ".pragma")) {
		ptx_next(reader);
		return ptx_expect(reader, ";");
	}
	if (ptx_token_is(&word, ".section") || ptx_token_is(&word, ".alias") ||
	    ptx_token_is(&word, ".tex"))
		return ptx_unsupported(reader, &word);
	reader->token = word;
	return ptx_unexpected(reader);
}

CUresult ptx_read(const char *text, const struct symbols *arrays, struct jit_log *log,
                  struct ptx **out)
{
	struct reader reader = {.at = text, .line = 1, .log = log, .arrays = arrays};

	reader.ptx = calloc(1, sizeof(*reader.ptx));
	if (!reader.ptx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ptx_next(&reader);
	if (!ptx_at(&reader, ".version")) { /* then the driver does not treat it as text */
		jit_say(reader.log, "fatal   : the image does not begin with .version\n");
		ptx_wrong(&reader, CUDA_ERROR_INVALID_IMAGE);
	}
	while (reader.token.kind != TOKEN_END && read_module_directive(&reader))
		;
	free(reader.everywhere.list);
	free(reader.here.list);
	if (reader.result != CUDA_SUCCESS) {
		ptx_free(reader.ptx);
		return reader.result;
	}
	*out = reader.ptx;
	return CUDA_SUCCESS;
}

void ptx_free(struct ptx *ptx)
{
	if (!ptx)
		return;
	for (size_t i = 0; i < ptx->kernel_count; i++) {
		free(ptx->kernels[i].name);
		free(ptx->kernels[i].code);
		free(ptx->kernels[i].parameters);
	}
	for (size_t i = 0; i < ptx->value_count; i++)
		free(ptx->values[i].bytes);
	free(ptx->kernels);
	free(ptx->values);
	free(ptx);
}
