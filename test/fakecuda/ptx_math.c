/* SPDX-License-Identifier: Apache-2.0 */
/* The computations of PTX's instructions. A register has a value's bits, below zeros, or below
 * copies of the sign of a signed value. */
#include "ptx_code.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide;
__extension__ typedef __int128 signed_wide;

#define UNKNOWN_QUOTIENT ~(uint64_t)0 /* of a division by 0: undefined, and no fault */

uint64_t ptx_extend(const struct ptx_type *type, uint64_t value)
{
	unsigned unused = 64 - 8 * type->bytes;

	if (type->kind == KIND_PREDICATE)
		return value & 1;
	if (type->kind == KIND_SIGNED)
		return (uint64_t)((int64_t)(value << unused) >> unused);
	return value << unused >> unused;
}

static double float_of(const struct ptx_type *type, uint64_t bits)
{
	double value;
	float narrow;

	if (type->bytes == sizeof(narrow)) {
		memcpy(&narrow, &bits, sizeof(narrow));
		return narrow;
	}
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint64_t bits_of(const struct ptx_type *type, double value)
{
	float narrow = (float)value;
	uint64_t bits = 0;

	if (type->bytes == sizeof(narrow))
		memcpy(&bits, &narrow, sizeof(narrow));
	else
		memcpy(&bits, &value, sizeof(value));
	return bits;
}

static double saturate(double value)
{
	if (!(value > 0)) /* NaN becomes 0, too */
		return 0;
	return value > 1 ? 1 : value;
}

/* Every operation but a fused one rounds once: a double holds f32's results so precisely that a
 * second rounding to f32 is right. */
static uint64_t compute_float(const struct ptx_instruction *instruction, uint64_t a, uint64_t b,
                              uint64_t c)
{
	const struct ptx_type *type = instruction->type;
	double x = float_of(type, a), y = float_of(type, b), z = float_of(type, c), result;

	switch (instruction->op) {
	case OP_ADD:
		result = x + y;
		break;
	case OP_SUB:
		result = x - y;
		break;
	case OP_MUL:
		result = x * y;
		break;
	case OP_MAD:
	case OP_FMA:
		result = (double)((long double)x * y + z);
		break;
	case OP_DIV:
		result = x / y;
		break;
	case OP_MIN:
		result = y != y || x < y ? x : y;
		break;
	case OP_MAX:
		result = y != y || x > y ? x : y;
		break;
	case OP_ABS:
		result = __builtin_fabs(x);
		break;
	case OP_NEG:
		result = -x;
		break;
	case OP_SQRT:
		result = __builtin_sqrt(x);
		break;
	default: /* OP_RCP */
		result = 1 / x;
	}
	return bits_of(type, instruction->saturates ? saturate(result) : result);
}

static uint64_t product(const struct ptx_instruction *instruction, uint64_t a, uint64_t b)
{
	const struct ptx_type *type = instruction->type;
	wide all =
	    type->kind == KIND_SIGNED ? (wide)((signed_wide)(int64_t)a * (int64_t)b) : (wide)a * b;

	/* PART_WIDE has at most 64 bits, so the result is complete. */
	return (uint64_t)(instruction->part == PART_HIGH ? all >> 8 * type->bytes : all);
}

static uint64_t quotient(bool is_signed, bool remainder, uint64_t a, uint64_t b)
{
	if (!b)
		return remainder ? a : UNKNOWN_QUOTIENT;
	if (is_signed && (int64_t)b == -1)
		return remainder ? 0 : -a;
	if (is_signed)
		return (uint64_t)(remainder ? (int64_t)a % (int64_t)b : (int64_t)a / (int64_t)b);
	return remainder ? a % b : a / b;
}

static uint64_t shift(const struct ptx_instruction *instruction, uint64_t a, uint64_t by)
{
	unsigned bits = 8 * instruction->type->bytes;
	bool is_signed = instruction->type->kind == KIND_SIGNED;

	by = (uint32_t)by;
	if (instruction->op == OP_SHL)
		return by < bits ? a << by : 0;
	if (is_signed)
		return (uint64_t)((int64_t)a >> (by < bits ? by : bits - 1));
	return by < bits ? a >> by : 0;
}

uint64_t ptx_compute(const struct ptx_instruction *instruction, uint64_t a, uint64_t b, uint64_t c)
{
	const struct ptx_type *type = instruction->type;
	bool is_signed = type->kind == KIND_SIGNED, less;
	uint64_t result;

	if (type->kind == KIND_FLOAT)
		return compute_float(instruction, a, b, c);
	a = ptx_extend(type, a);
	if (instruction->op != OP_SHL && instruction->op != OP_SHR)
		b = ptx_extend(type, b);
	less = is_signed ? (int64_t)a < (int64_t)b : a < b;
	switch (instruction->op) {
	case OP_ADD:
		result = a + b;
		break;
	case OP_SUB:
		result = a - b;
		break;
	case OP_MUL:
		result = product(instruction, a, b);
		break;
	case OP_MAD:
		result = product(instruction, a, b) + c;
		break;
	case OP_DIV:
	case OP_REM:
		result = quotient(is_signed, instruction->op == OP_REM, a, b);
		break;
	case OP_MIN:
		result = less ? a : b;
		break;
	case OP_MAX:
		result = less ? b : a;
		break;
	case OP_ABS:
		result = is_signed && (int64_t)a < 0 ? -a : a;
		break;
	case OP_NEG:
		result = -a;
		break;
	case OP_AND:
		result = a & b;
		break;
	case OP_OR:
		result = a | b;
		break;
	case OP_XOR:
		result = a ^ b;
		break;
	case OP_NOT:
		result = ~a;
		break;
	default:
		result = shift(instruction, a, b);
	}
	if (instruction->part == PART_WIDE)
		return result;
	return ptx_extend(type, result);
}

/* Beyond 2^52 every double is whole. */
static double whole(enum ptx_rounding rounding, double value)
{
	double down, up;

	if (!(__builtin_fabs(value) < 4503599627370496.0))
		return value;
	down = (double)(int64_t)value;
	if (down > value)
		down -= 1;
	up = down < value ? down + 1 : down;
	switch (rounding) {
	case ROUND_DOWN:
		return down;
	case ROUND_UP:
		return up;
	case ROUND_ZERO:
		return value < 0 ? up : down;
	default:
		if (value - down != up - value)
			return value - down < up - value ? down : up;
		return (int64_t)down % 2 ? up : down;
	}
}

/* A value out of range becomes the nearest in range, and a NaN 0. */
static uint64_t integer_of(const struct ptx_type *type, double value)
{
	unsigned bits = 8 * type->bytes;
	double limit = type->kind == KIND_SIGNED ? (double)((uint64_t)1 << (bits - 1))
	                                         : 2.0 * (double)((uint64_t)1 << (bits - 1));

	if (value != value)
		return 0;
	if (type->kind == KIND_SIGNED) {
		if (value >= limit)
			return ((uint64_t)1 << (bits - 1)) - 1;
		return value < -limit ? ptx_extend(type, (uint64_t)1 << (bits - 1))
		                      : (uint64_t)(int64_t)value;
	}
	if (value >= limit)
		return ptx_extend(type, ~(uint64_t)0);
	return value < 0 ? 0 : (uint64_t)value;
}

static uint64_t clamp(const struct ptx_type *to, const struct ptx_type *from, uint64_t value)
{
	bool below = from->kind == KIND_SIGNED && (int64_t)value < 0;
	unsigned bits = 8 * to->bytes;
	uint64_t most = to->kind == KIND_SIGNED ? ((uint64_t)1 << (bits - 1)) - 1
	                                        : ptx_extend(to, ~(uint64_t)0);

	if (!below)
		return value > most ? most : value;
	if (to->kind != KIND_SIGNED)
		return 0;
	return (int64_t)value < -(int64_t)most - 1 ? ~most : value;
}

uint64_t ptx_convert(const struct ptx_instruction *instruction, uint64_t value)
{
	const struct ptx_type *to = instruction->type, *from = instruction->from;
	double number;

	value = ptx_extend(from, value);
	if (from->kind != KIND_FLOAT && to->kind != KIND_FLOAT) {
		if (instruction->saturates)
			value = clamp(to, from, value);
		return ptx_extend(to, value);
	}
	if (from->kind == KIND_FLOAT) {
		number = float_of(from, value);
		if (to->kind != KIND_FLOAT)
			return integer_of(to, whole(instruction->rounding, number));
		if (instruction->to_whole)
			number = whole(instruction->rounding, number);
	} else if (to->bytes == sizeof(float)) { /* a double in between would round twice */
		number = from->kind == KIND_SIGNED ? (float)(int64_t)value : (float)value;
	} else {
		number = from->kind == KIND_SIGNED ? (double)(int64_t)value : (double)value;
	}
	return bits_of(to, instruction->saturates ? saturate(number) : number);
}

static bool holds(enum ptx_compare compare, int order)
{
	switch (compare) {
	case COMPARE_EQ:
		return order == 0;
	case COMPARE_NE:
		return order != 0;
	case COMPARE_LT:
		return order < 0;
	case COMPARE_LE:
		return order <= 0;
	case COMPARE_GT:
		return order > 0;
	default:
		return order >= 0;
	}
}

bool ptx_compare(const struct ptx_instruction *instruction, uint64_t a, uint64_t b)
{
	const struct ptx_type *type = instruction->type;

	if (type->kind == KIND_FLOAT) {
		double x = float_of(type, a), y = float_of(type, b);
		bool unordered = x != x || y != y;

		if (instruction->compare == COMPARE_NUM || instruction->compare == COMPARE_NAN)
			return unordered == (instruction->compare == COMPARE_NAN);
		return unordered ? instruction->unordered
		                 : holds(instruction->compare, (x > y) - (x < y));
	}
	a = ptx_extend(type, a);
	b = ptx_extend(type, b);
	if (type->kind == KIND_SIGNED)
		return holds(instruction->compare,
		             ((int64_t)a > (int64_t)b) - ((int64_t)a < (int64_t)b));
	return holds(instruction->compare, (a > b) - (a < b));
}
