/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels as made by ptx_read.c and run by ptx_run.c. */
#ifndef FAKECUDA_PTX_CODE_H
#define FAKECUDA_PTX_CODE_H

#include "ptx.h"

enum ptx_op {
	OP_LD,
	OP_ST,
	OP_MOV,
	OP_CVT,
	OP_CVTA,
	OP_ADD,
	OP_SUB,
	OP_MUL,
	OP_MAD,
	OP_FMA,
	OP_DIV,
	OP_REM,
	OP_MIN,
	OP_MAX,
	OP_ABS,
	OP_NEG,
	OP_SQRT,
	OP_RCP,
	OP_AND,
	OP_OR,
	OP_XOR,
	OP_NOT,
	OP_SHL,
	OP_SHR,
	OP_SETP,
	OP_SELP,
	OP_ATOM,
	OP_RED,
	OP_BRA,
	OP_CALL,
	OP_BAR,
	OP_FENCE,
	OP_TRAP,
	OP_EXIT,
};

enum ptx_kind { KIND_BITS, KIND_UNSIGNED, KIND_SIGNED, KIND_FLOAT, KIND_PREDICATE };

struct ptx_type {
	const char *name;
	unsigned char bytes;
	unsigned char kind; /* enum ptx_kind */
};

/* The part of a product. */
enum ptx_part { PART_LOW, PART_HIGH, PART_WIDE };

enum ptx_rounding { ROUND_NONE, ROUND_NEAREST, ROUND_ZERO, ROUND_DOWN, ROUND_UP };

enum ptx_compare {
	COMPARE_NONE,
	COMPARE_EQ,
	COMPARE_NE,
	COMPARE_LT,
	COMPARE_LE,
	COMPARE_GT,
	COMPARE_GE,
	COMPARE_NUM,
	COMPARE_NAN,
};

/* The join of a comparison with a predicate, and the operation of an atomic. */
enum ptx_join {
	JOIN_NONE,
	JOIN_AND,
	JOIN_OR,
	JOIN_XOR,
	JOIN_ADD,
	JOIN_MIN,
	JOIN_MAX,
	JOIN_INC,
	JOIN_DEC,
	JOIN_EXCHANGE,
	JOIN_CAS,
};

enum ptx_operand_kind {
	OPERAND_REGISTER,
	OPERAND_NUMBER,
	OPERAND_SPECIAL, /* enum ptx_special */
	OPERAND_ARRAY,   /* an offset in the arrays of the module */
	OPERAND_NOWHERE, /* "_" */
};

/* The first four have an .x, a .y and a .z, in this order. */
enum ptx_special {
	SPECIAL_TID,
	SPECIAL_NTID = 3,
	SPECIAL_CTAID = 6,
	SPECIAL_NCTAID = 9,
	SPECIAL_LANE = 12,
	SPECIAL_WARP,
	SPECIAL_CLOCK,
};

struct ptx_operand {
	enum ptx_operand_kind kind;
	bool negated; /* a predicate after "!" */
	uint64_t value;
};

#define PTX_OPERANDS 6

struct ptx_instruction {
	enum ptx_op op;
	const struct ptx_type *type;
	const struct ptx_type *from; /* of a conversion's source, else as `type` */
	enum ptx_part part;
	enum ptx_rounding rounding;
	bool to_whole; /* a float is rounded to a whole number */
	bool saturates;
	enum ptx_compare compare;
	bool unordered; /* a comparison with a NaN is true */
	enum ptx_join join;
	bool guarded, guard_negated;
	unsigned guard;   /* register */
	unsigned count;   /* of operands */
	unsigned first;   /* size of the first group, in braces or alone */
	bool has_address; /* one of them was in brackets */
	unsigned address; /* its index */
	uint64_t offset;  /* added to it */
	size_t target;    /* of a branch */
	struct ptx_operand operands[PTX_OPERANDS];
};

struct ptx_parameter {
	size_t offset, size;
};

struct ptx_kernel {
	char *name;
	struct ptx_instruction *code;
	size_t length;
	struct ptx_parameter *parameters;
	size_t parameter_count, parameter_bytes;
	size_t registers, local_bytes, shared_bytes;
	bool uses_arrays;
};

/* ptx_digest.c: whether it is the interceptor's kernel of digests, and the digest of its data. */
bool ptx_is_digest(const struct ptx_kernel *kernel);
void ptx_digest(const char *data, uint64_t to[2]);

/* The initial content of an array. */
struct ptx_values {
	uint64_t offset;
	unsigned char *bytes;
	size_t count;
};

struct ptx {
	struct ptx_kernel *kernels;
	size_t kernel_count;
	struct ptx_values *values;
	size_t value_count;
};

/*
 * Addresses of other spaces than the card's lie where no program has memory of the card, and fit in
 * 32 bits. So an address determines its space.
 */
#define PTX_WINDOW_BYTES ((uint64_t)16 * MiB)
#define PTX_PARAMETERS_AT ((uint64_t)0xf1000000)
#define PTX_LOCAL_AT ((uint64_t)0xf2000000)
#define PTX_SHARED_AT ((uint64_t)0xf3000000)
#define PTX_DYNAMIC_AT ((uint64_t)0xf4000000) /* shared memory sized by the launch */

/* ptx_word.c: the meaning of an instruction's words. */
enum ptx_word { WORD_TAKEN, WORD_UNKNOWN, WORD_UNSUPPORTED };
enum ptx_word ptx_opcode(const char *text, size_t length, struct ptx_instruction *into);
/* The first type becomes `type`, and a second one `from`. */
enum ptx_word ptx_modifier(const char *text, size_t length, struct ptx_instruction *into);
const struct ptx_type *ptx_type_named(const char *text, size_t length);
/* The enum ptx_special of "%tid.x" and similar names; -1 for others. */
int ptx_special_named(const char *text, size_t length);
/* True if it has the right number of operands. */
bool ptx_count_fits(const struct ptx_instruction *instruction);

/* ptx_math.c */
uint64_t ptx_compute(const struct ptx_instruction *instruction, uint64_t a, uint64_t b, uint64_t c);
uint64_t ptx_convert(const struct ptx_instruction *instruction, uint64_t value);
bool ptx_compare(const struct ptx_instruction *instruction, uint64_t a, uint64_t b);
/* A value of that type, as a register has it. */
uint64_t ptx_extend(const struct ptx_type *type, uint64_t value);

#endif
