/* SPDX-License-Identifier: Apache-2.0 */
/* The words of PTX instructions. */
#include "ptx_code.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool is(const char *text, size_t length, const char *name)
{
	return strlen(name) == length && memcmp(text, name, length) == 0;
}

static const struct {
	const char *name;
	enum ptx_op op;
	unsigned char least, most; /* operands */
} opcodes[] = {
    {"ld", OP_LD, 2, 5},        {"ldu", OP_LD, 2, 5},      {"st", OP_ST, 2, 5},
    {"mov", OP_MOV, 2, 5},      {"cvt", OP_CVT, 2, 2},     {"cvta", OP_CVTA, 2, 2},
    {"add", OP_ADD, 3, 3},      {"sub", OP_SUB, 3, 3},     {"mul", OP_MUL, 3, 3},
    {"mad", OP_MAD, 4, 4},      {"fma", OP_FMA, 4, 4},     {"div", OP_DIV, 3, 3},
    {"rem", OP_REM, 3, 3},      {"min", OP_MIN, 3, 3},     {"max", OP_MAX, 3, 3},
    {"abs", OP_ABS, 2, 2},      {"neg", OP_NEG, 2, 2},     {"sqrt", OP_SQRT, 2, 2},
    {"rcp", OP_RCP, 2, 2},      {"and", OP_AND, 3, 3},     {"or", OP_OR, 3, 3},
    {"xor", OP_XOR, 3, 3},      {"not", OP_NOT, 2, 2},     {"shl", OP_SHL, 3, 3},
    {"shr", OP_SHR, 3, 3},      {"setp", OP_SETP, 3, 5},   {"selp", OP_SELP, 4, 4},
    {"atom", OP_ATOM, 3, 4},    {"red", OP_RED, 2, 2},     {"bra", OP_BRA, 0, 0},
    {"call", OP_CALL, 0, 0},    {"bar", OP_BAR, 1, 2},     {"barrier", OP_BAR, 1, 2},
    {"membar", OP_FENCE, 0, 0}, {"fence", OP_FENCE, 0, 0}, {"trap", OP_TRAP, 0, 0},
    {"ret", OP_EXIT, 0, 0},     {"exit", OP_EXIT, 0, 0},
};

/* Other opcodes of PTX, which are not mistakes. */
static const char *const other_opcodes[] = {
    "activemask",   "addc",
    "alloca",       "applypriority",
    "bfe",          "bfi",
    "bfind",        "bmsk",
    "brev",         "brkpt",
    "brx",          "clusterlaunchcontrol",
    "clz",          "cnot",
    "copysign",     "cos",
    "cp",           "createpolicy",
    "discard",      "dp2a",
    "dp4a",         "elect",
    "ex2",          "fns",
    "getctarank",   "griddepcontrol",
    "isspacep",     "istypep",
    "ldmatrix",     "lg2",
    "lop3",         "mad24",
    "madc",         "mapa",
    "match",        "mbarrier",
    "mma",          "movmatrix",
    "mul24",        "multimem",
    "nanosleep",    "pmevent",
    "popc",         "prefetch",
    "prefetchu",    "prmt",
    "redux",        "rsqrt",
    "sad",          "set",
    "setmaxnreg",   "shf",
    "shfl",         "sin",
    "slct",         "st",
    "stackrestore", "stacksave",
    "stmatrix",     "subc",
    "suld",         "suq",
    "sured",        "sust",
    "szext",        "tanh",
    "tcgen05",      "tensormap",
    "testp",        "tex",
    "tld4",         "txq",
    "vabsdiff",     "vadd",
    "vmad",         "vmax",
    "vmin",         "vote",
    "vset",         "vshl",
    "vshr",         "vsub",
    "wgmma",        "wmma",
};

static const struct ptx_type types[] = {
    {"b8", 1, KIND_BITS},      {"b16", 2, KIND_BITS},     {"b32", 4, KIND_BITS},
    {"b64", 8, KIND_BITS},     {"u8", 1, KIND_UNSIGNED},  {"u16", 2, KIND_UNSIGNED},
    {"u32", 4, KIND_UNSIGNED}, {"u64", 8, KIND_UNSIGNED}, {"s8", 1, KIND_SIGNED},
    {"s16", 2, KIND_SIGNED},   {"s32", 4, KIND_SIGNED},   {"s64", 8, KIND_SIGNED},
    {"f32", 4, KIND_FLOAT},    {"f64", 8, KIND_FLOAT},    {"pred", 1, KIND_PREDICATE},
};

static const char *const other_types[] = {"f16",  "f16x2", "bf16",  "bf16x2", "tf32", "b128",
                                          "e4m3", "e5m2",  "f32x2", "u16x2",  "s16x2"};

/* Modifiers without an effect here: memory orders, caches, precisions, spaces. */
static const char *const without_effect[] = {
    "ftz",   "approx", "full",  "uni",    "volatile", "relaxed", "acquire", "release", "acq_rel",
    "sc",    "weak",   "sys",   "gpu",    "cta",      "cluster", "gl",      "ca",      "cg",
    "cs",    "lu",     "cv",    "wb",     "wt",       "nc",      "sync",    "aligned", "to",
    "param", "global", "local", "shared", "const",    "v2",      "v4",
};

static const struct {
	const char *name;
	enum ptx_rounding rounding;
	bool to_whole;
} roundings[] = {{"rn", ROUND_NEAREST, false}, {"rz", ROUND_ZERO, false},
                 {"rm", ROUND_DOWN, false},    {"rp", ROUND_UP, false},
                 {"rni", ROUND_NEAREST, true}, {"rzi", ROUND_ZERO, true},
                 {"rmi", ROUND_DOWN, true},    {"rpi", ROUND_UP, true}};

static const struct {
	const char *name;
	enum ptx_compare compare;
	bool unordered;
} compares[] = {
    {"eq", COMPARE_EQ, false}, {"ne", COMPARE_NE, false},   {"lt", COMPARE_LT, false},
    {"le", COMPARE_LE, false}, {"gt", COMPARE_GT, false},   {"ge", COMPARE_GE, false},
    {"lo", COMPARE_LT, false}, {"ls", COMPARE_LE, false},   {"hi", COMPARE_GT, false},
    {"hs", COMPARE_GE, false}, {"equ", COMPARE_EQ, true},   {"neu", COMPARE_NE, true},
    {"ltu", COMPARE_LT, true}, {"leu", COMPARE_LE, true},   {"gtu", COMPARE_GT, true},
    {"geu", COMPARE_GE, true}, {"num", COMPARE_NUM, false}, {"nan", COMPARE_NAN, false},
};

static const struct {
	const char *name;
	enum ptx_join join;
} joins[] = {{"and", JOIN_AND},       {"or", JOIN_OR},   {"xor", JOIN_XOR}, {"add", JOIN_ADD},
             {"min", JOIN_MIN},       {"max", JOIN_MAX}, {"inc", JOIN_INC}, {"dec", JOIN_DEC},
             {"exch", JOIN_EXCHANGE}, {"cas", JOIN_CAS}};

static const char *const specials[] = {"%tid.x",   "%tid.y",    "%tid.z",    "%ntid.x",
                                       "%ntid.y",  "%ntid.z",   "%ctaid.x",  "%ctaid.y",
                                       "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
                                       "%laneid",  "%warpid",   "%clock",    "%clock64"};

enum ptx_word ptx_opcode(const char *text, size_t length, struct ptx_instruction *into)
{
	for (size_t i = 0; i < COUNT(opcodes); i++)
		if (is(text, length, opcodes[i].name)) {
			into->op = opcodes[i].op;
			return WORD_TAKEN;
		}
	for (size_t i = 0; i < COUNT(other_opcodes); i++)
		if (is(text, length, other_opcodes[i]))
			return WORD_UNSUPPORTED;
	return WORD_UNKNOWN;
}

bool ptx_count_fits(const struct ptx_instruction *instruction)
{
	for (size_t i = 0; i < COUNT(opcodes); i++)
		if (opcodes[i].op == instruction->op)
			return instruction->count >= opcodes[i].least &&
			       instruction->count <= opcodes[i].most;
	return false;
}

const struct ptx_type *ptx_type_named(const char *text, size_t length)
{
	for (size_t i = 0; i < COUNT(types); i++)
		if (is(text, length, types[i].name))
			return &types[i];
	return NULL;
}

int ptx_special_named(const char *text, size_t length)
{
	for (size_t i = 0; i < COUNT(specials); i++)
		if (is(text, length, specials[i]))
			return i < SPECIAL_CLOCK ? (int)i : SPECIAL_CLOCK;
	return -1;
}

static bool take_type(const struct ptx_type *type, struct ptx_instruction *into)
{
	if (!into->type)
		into->type = type;
	else if (!into->from)
		into->from = type;
	else
		return false;
	return true;
}

/* Words with a meaning in one instruction only. */
static bool take_of_op(const char *text, size_t length, struct ptx_instruction *into)
{
	bool multiplies = into->op == OP_MUL || into->op == OP_MAD;
	bool joins_any = into->op == OP_ATOM || into->op == OP_RED;

	if (multiplies && is(text, length, "lo"))
		into->part = PART_LOW;
	else if (multiplies && is(text, length, "hi"))
		into->part = PART_HIGH;
	else if (multiplies && is(text, length, "wide"))
		into->part = PART_WIDE;
	else
		multiplies = false;
	if (multiplies)
		return true;
	for (size_t i = 0; into->op == OP_SETP && i < COUNT(compares); i++)
		if (is(text, length, compares[i].name)) {
			into->compare = compares[i].compare;
			into->unordered = compares[i].unordered;
			return true;
		}
	for (size_t i = 0; (joins_any || into->op == OP_SETP) && i < COUNT(joins); i++)
		if (is(text, length, joins[i].name)) {
			into->join = joins[i].join;
			return joins_any || into->join <= JOIN_XOR;
		}
	return false;
}

enum ptx_word ptx_modifier(const char *text, size_t length, struct ptx_instruction *into)
{
	const struct ptx_type *type = ptx_type_named(text, length);

	if (type)
		return take_type(type, into) ? WORD_TAKEN : WORD_UNKNOWN;
	if (take_of_op(text, length, into))
		return WORD_TAKEN;
	for (size_t i = 0; i < COUNT(roundings); i++)
		if (is(text, length, roundings[i].name)) {
			into->rounding = roundings[i].rounding;
			into->to_whole = roundings[i].to_whole;
			return WORD_TAKEN;
		}
	if (is(text, length, "sat")) {
		into->saturates = true;
		return into->op == OP_CVT || into->op == OP_ADD || into->op == OP_SUB ||
		               into->op == OP_MUL || into->op == OP_FMA || into->op == OP_MAD
		           ? WORD_TAKEN
		           : WORD_UNKNOWN;
	}
	for (size_t i = 0; i < COUNT(without_effect); i++)
		if (is(text, length, without_effect[i]))
			return WORD_TAKEN;
	for (size_t i = 0; i < COUNT(other_types); i++)
		if (is(text, length, other_types[i]))
			return WORD_UNSUPPORTED;
	return is(text, length, "const") || is(text, length, "red") || is(text, length, "arrive")
	           ? WORD_UNSUPPORTED
	           : WORD_UNKNOWN;
}
