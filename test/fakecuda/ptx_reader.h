/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading PTX text. Functions return false from the first mistake on, at which the text ends for
 * the reader.
 */
#ifndef FAKECUDA_PTX_READER_H
#define FAKECUDA_PTX_READER_H

#include "ptx_code.h"

enum token_kind { TOKEN_END, TOKEN_WORD, TOKEN_NUMBER, TOKEN_TEXT, TOKEN_SIGN };

struct token {
	enum token_kind kind;
	const char *start;
	size_t length;
	unsigned line;
};

enum name_kind {
	NAME_REGISTER,
	NAME_REGISTERS, /* "%r<8>": its prefix */
	NAME_MEMORY,    /* a parameter, a local or a shared array */
	NAME_ARRAY,     /* of the module */
	NAME_MANAGED,   /* of the module, and not usable by kernels here */
	NAME_FOREIGN,   /* a function outside the text */
	NAME_FUNCTION,
	NAME_LABEL,
	NAME_LABEL_AHEAD, /* used by a branch, not defined yet */
};

struct name {
	enum name_kind kind;
	const char *start;
	size_t length;
	uint64_t value; /* a register, an address, an offset, a place in the code */
	uint64_t count; /* of registers; of a label ahead, its line */
};

struct names {
	struct name *list;
	size_t count;
};

struct reader {
	const char *at;
	unsigned line;
	struct token token; /* the next one */
	struct jit_log *log;
	CUresult result;
	const struct symbols *arrays;
	struct ptx *ptx;
	struct names everywhere, here;
	struct ptx_kernel *kernel; /* the current one */
	size_t room;               /* for its code */
	uint64_t module_shared;
};

/* The content of ".align 8 .v2 .b32 name[4][4]". */
struct variable {
	struct token name;
	const struct ptx_type *type;
	uint64_t align, size;
};

/* ptx_token.c */
/* Records the first mistake. Always returns false. */
bool ptx_wrong(struct reader *reader, CUresult result);
bool ptx_unexpected(struct reader *reader); /* the next token is the mistake */
bool ptx_unsupported(struct reader *reader, const struct token *what);
bool ptx_no_memory(struct reader *reader);
int ptx_length_of(const struct token *token); /* for "%.*s" */
void ptx_next(struct reader *reader);
bool ptx_token_is(const struct token *token, const char *text);
bool ptx_at(const struct reader *reader, const char *text);
/* True if the next token was this text; it is then read. */
bool ptx_skip(struct reader *reader, const char *text);
/* The same, and otherwise a mistake. */
bool ptx_expect(struct reader *reader, const char *text);
bool ptx_read_word(struct reader *reader, struct token *out);
/* An integer without a sign. */
bool ptx_read_size(struct reader *reader, uint64_t *out);
/* A number as an instruction of that type takes it; without a type, an offset. */
bool ptx_read_number(struct reader *reader, const struct ptx_type *type, uint64_t *out);

#define PTX_WRONG(reader, severity, format, ...)                                                   \
	((reader)->result == CUDA_SUCCESS                                                          \
	     ? jit_say((reader)->log,                                                              \
	               "ptxas application ptx input, line %u; " severity format                    \
	               "\nptxas fatal   : Ptx assembly aborted due to errors\n",                   \
	               (reader)->token.line, __VA_ARGS__)                                          \
	     : (void)0,                                                                            \
	 ptx_wrong(reader, CUDA_ERROR_INVALID_PTX))

/* ptx_name.c: NULL or false if there is none */
struct name *ptx_find_in(const struct names *names, const struct token *token);
struct name *ptx_find_name(const struct reader *reader, const struct token *token);
bool ptx_find_register(const struct reader *reader, const struct token *token, uint64_t *out);
bool ptx_add_name(struct reader *reader, struct names *names, enum name_kind kind,
                  const struct token *token, uint64_t value, uint64_t count);

/* ptx_variable.c: declarations, after their first word */
bool ptx_read_registers(struct reader *reader);
bool ptx_read_array(struct reader *reader);
/* A variable of a kernel, or one shared by all kernels of the module. */
bool ptx_read_memory(struct reader *reader, struct names *names, uint64_t window, uint64_t *used);
/* A kernel's parameter. */
bool ptx_read_variable(struct reader *reader, struct variable *out);
/* Places it in one of the windows of ptx_code.h, and returns its address. */
bool ptx_place(struct reader *reader, const struct variable *variable, uint64_t window,
               uint64_t *used, uint64_t *address);

/* ptx_instruction.c */
bool ptx_read_instruction(struct reader *reader);
bool ptx_add_instruction(struct reader *reader, const struct ptx_instruction *instruction);

#endif
