/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launch, carried out block by block. The threads of a block take turns: each runs until it ends,
 * waits at a barrier, or its turn is over.
 */
#define _GNU_SOURCE
#include "../../interceptor/digest_ptx.h"
#include "address.h"
#include "copy.h"
#include "managed.h"
#include "ptx_code.h"

#include <stdlib.h>
#include <string.h>

#define TURN 1024 /* instructions */
#define WINDOWS 8

enum thread_state { RUNNING, AT_BARRIER, ENDED };

struct thread {
	enum thread_state state;
	size_t at;
	unsigned index[3];
};

/* Memory that the context may use, as checked; valid for one step. */
struct window {
	CUdeviceptr start;
	uint64_t size;
};

struct ptx_run {
	const struct ptx_kernel *kernel;
	CUcontext context;
	unsigned grid[3], block[3];
	unsigned block_index[3];
	size_t thread_count;
	struct thread *threads;
	uint64_t *registers; /* of all threads, one after another */
	char *local, *shared, *dynamic, *parameters;
	size_t dynamic_bytes;
	CUdeviceptr arrays;
	size_t thread; /* the current one */
	uint64_t clock;
	struct window windows[2][WINDOWS]; /* to read, to write */
	unsigned oldest;                   /* to be replaced next */
};

static void begin_block(struct ptx_run *run)
{
	const struct ptx_kernel *kernel = run->kernel;

	memset(run->registers, 0, run->thread_count * kernel->registers * sizeof(uint64_t));
	for (size_t i = 0; i < run->thread_count; i++)
		run->threads[i] =
		    (struct thread){.index = {(unsigned)(i % run->block[0]),
		                              (unsigned)(i / run->block[0] % run->block[1]),
		                              (unsigned)(i / run->block[0] / run->block[1])}};
	run->thread = 0;
}

/* calloc of 0 bytes may return NULL. */
static void *room_for(size_t count, size_t bytes)
{
	return calloc(count ? count : 1, bytes ? bytes : 1);
}

struct ptx_run *ptx_start(const struct ptx_kernel *kernel, CUcontext context,
                          const CUlaunchConfig *config, const void *parameters, CUdeviceptr arrays)
{
	struct ptx_run *run = calloc(1, sizeof(*run));

	if (!run)
		return NULL;
	*run = (struct ptx_run){.kernel = kernel,
	                        .context = context,
	                        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
	                        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
	                        .thread_count = (size_t)config->blockDimX * config->blockDimY *
	                                        config->blockDimZ,
	                        .dynamic_bytes = config->sharedMemBytes,
	                        .arrays = arrays};
	run->threads = room_for(run->thread_count, sizeof(*run->threads));
	run->registers = room_for(run->thread_count * kernel->registers, sizeof(*run->registers));
	run->local = room_for(run->thread_count, kernel->local_bytes);
	run->shared = room_for(1, kernel->shared_bytes);
	run->dynamic = room_for(1, run->dynamic_bytes);
	run->parameters = room_for(1, kernel->parameter_bytes);
	if (!run->threads || !run->registers || !run->local || !run->shared || !run->dynamic ||
	    !run->parameters) {
		ptx_end(run);
		return NULL;
	}
	if (kernel->parameter_bytes)
		memcpy(run->parameters, parameters, kernel->parameter_bytes);
	begin_block(run);
	return run;
}

void ptx_end(struct ptx_run *run)
{
	free(run->threads);
	free(run->registers);
	free(run->local);
	free(run->shared);
	free(run->dynamic);
	free(run->parameters);
	free(run);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* The host's view of `address` in [at, at + bytes) with room for `size`, or NULL. */
static void *within(char *memory, uint64_t at, uint64_t bytes, uint64_t address, size_t size)
{
	uint64_t offset = address - at;

	return address >= at && offset < bytes && size <= bytes - offset ? memory + offset : NULL;
}

static void *on_card(struct ptx_run *run, uint64_t address, size_t size, bool write)
{
	struct window *windows = run->windows[write];
	struct range *range;

	for (const struct window *window = windows; window < windows + WINDOWS; window++)
		if (address - window->start < window->size &&
		    size <= window->size - (address - window->start))
			return (void *)(uintptr_t)address;
	range = ranges_at(&allocations, address);
	if (!range)
		return NULL;
	/* Pages of managed memory are counted when written to. */
	if (!(write && range->kind == RANGE_MANAGED) &&
	    size <= range->size - (address - range->start) &&
	    copy_may_touch(run->context, range->start, range->size, write) &&
	    copy_view(range->start, range->size)) {
		windows[run->oldest++ % WINDOWS] = (struct window){range->start, range->size};
		return (void *)(uintptr_t)address;
	}
	if (!copy_may_touch(run->context, address, size, write))
		return NULL;
	if (write && range->kind == RANGE_MANAGED)
		managed_touch(range, address, size);
	return copy_view(address, size);
}

/* The address itself determines the space (ptx_code.h). */
static void *memory_at(struct ptx_run *run, uint64_t address, size_t size, bool write)
{
	const struct ptx_kernel *kernel = run->kernel;
	uint64_t local_bytes = kernel->local_bytes;

	if (address < PTX_PARAMETERS_AT || address >= PTX_DYNAMIC_AT + PTX_WINDOW_BYTES)
		return on_card(run, address, size, write);
	if (address >= PTX_DYNAMIC_AT)
		return within(run->dynamic, PTX_DYNAMIC_AT, run->dynamic_bytes, address, size);
	if (address >= PTX_SHARED_AT)
		return within(run->shared, PTX_SHARED_AT, kernel->shared_bytes, address, size);
	if (address >= PTX_LOCAL_AT)
		return within(run->local + run->thread * local_bytes, PTX_LOCAL_AT, local_bytes,
		              address, size);
	return within(run->parameters, PTX_PARAMETERS_AT, kernel->parameter_bytes, address, size);
}

/* --- instructions ----------------------------------------------------------------------------- */

static uint64_t special(const struct ptx_run *run, uint64_t which)
{
	const struct thread *thread = &run->threads[run->thread];

	switch (which) {
	case SPECIAL_LANE:
		return run->thread % 32;
	case SPECIAL_WARP:
		return run->thread / 32;
	case SPECIAL_CLOCK:
		return run->clock;
	default:
		break;
	}
	if (which >= SPECIAL_NCTAID)
		return run->grid[which - SPECIAL_NCTAID];
	if (which >= SPECIAL_CTAID)
		return run->block_index[which - SPECIAL_CTAID];
	if (which >= SPECIAL_NTID)
		return run->block[which - SPECIAL_NTID];
	return thread->index[which];
}

static uint64_t *registers_of(const struct ptx_run *run)
{
	return run->registers + run->thread * run->kernel->registers;
}

static uint64_t value_of(const struct ptx_run *run, const struct ptx_operand *operand)
{
	uint64_t value = operand->value;

	switch (operand->kind) {
	case OPERAND_REGISTER:
		value = registers_of(run)[value];
		break;
	case OPERAND_SPECIAL:
		value = special(run, value);
		break;
	case OPERAND_ARRAY:
		value += run->arrays;
		break;
	default:
		break;
	}
	return operand->negated ? !value : value;
}

static void set(struct ptx_run *run, const struct ptx_operand *operand, uint64_t value)
{
	if (operand->kind == OPERAND_REGISTER)
		registers_of(run)[operand->value] = value;
}

/* The host's view of an instruction's address, for `bytes` there. */
static CUresult find(struct ptx_run *run, const struct ptx_instruction *in, size_t bytes,
                     bool write, void **out)
{
	uint64_t address = value_of(run, &in->operands[in->address]) + in->offset;

	if (address % bytes)
		return CUDA_ERROR_MISALIGNED_ADDRESS;
	*out = memory_at(run, address, bytes, write);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult load(struct ptx_run *run, const struct ptx_instruction *in)
{
	size_t bytes = in->type->bytes;
	char *from;
	CUresult result = find(run, in, bytes * in->first, false, (void **)&from);

	for (unsigned i = 0; i < in->first && result == CUDA_SUCCESS; i++) {
		uint64_t value = 0;

		memcpy(&value, from + i * bytes, bytes);
		set(run, &in->operands[i], ptx_extend(in->type, value));
	}
	return result;
}

static CUresult store(struct ptx_run *run, const struct ptx_instruction *in)
{
	size_t bytes = in->type->bytes;
	char *to;
	CUresult result = find(run, in, bytes * (in->count - 1), true, (void **)&to);

	for (unsigned i = 1; i < in->count && result == CUDA_SUCCESS; i++) {
		uint64_t value = value_of(run, &in->operands[i]);

		memcpy(to + (i - 1) * bytes, &value, bytes);
	}
	return result;
}

static uint64_t joined(const struct ptx_instruction *in, uint64_t old, uint64_t b, uint64_t c)
{
	static const enum ptx_op ops[] = {
	    [JOIN_AND] = OP_AND, [JOIN_OR] = OP_OR,   [JOIN_XOR] = OP_XOR,
	    [JOIN_ADD] = OP_ADD, [JOIN_MIN] = OP_MIN, [JOIN_MAX] = OP_MAX};
	struct ptx_instruction compute = {.type = in->type};

	switch (in->join) {
	case JOIN_INC:
		return old >= b ? 0 : old + 1;
	case JOIN_DEC:
		return !old || old > b ? b : old - 1;
	case JOIN_EXCHANGE:
		return b;
	case JOIN_CAS:
		return old == b ? c : old;
	default:
		compute.op = ops[in->join];
		return ptx_compute(&compute, old, b, 0);
	}
}

static CUresult change(struct ptx_run *run, const struct ptx_instruction *in)
{
	const struct ptx_operand *after = &in->operands[in->address + 1];
	size_t bytes = in->type->bytes;
	uint64_t old = 0, new;
	void *at;
	TRY(find(run, in, bytes, true, &at));
	memcpy(&old, at, bytes);
	new = joined(in, old, ptx_extend(in->type, value_of(run, after)),
	             in->join == JOIN_CAS ? value_of(run, after + 1) : 0);
	memcpy(at, &new, bytes);
	if (in->op == OP_ATOM)
		set(run, &in->operands[0], ptx_extend(in->type, old));
	return CUDA_SUCCESS;
}

/* Copies a value, or splits it into parts, or joins it from parts. */
static void move(struct ptx_run *run, const struct ptx_instruction *in)
{
	unsigned targets = in->first, sources = in->count - in->first;
	unsigned bits = 8 * in->type->bytes / (targets > sources ? targets : sources);
	uint64_t mask = bits < 64 ? ((uint64_t)1 << bits) - 1 : ~(uint64_t)0, whole = 0;

	if (in->type->kind == KIND_PREDICATE) {
		set(run, &in->operands[0], value_of(run, &in->operands[1]) & 1);
		return;
	}
	if (sources == 1)
		whole = value_of(run, &in->operands[targets]);
	for (unsigned i = 0; i < sources && sources > 1; i++)
		whole |= (value_of(run, &in->operands[targets + i]) & mask) << i * bits;
	for (unsigned i = 0; i < targets; i++)
		set(run, &in->operands[i], sources == 1 ? whole >> i * bits & mask : whole);
}

static void compare(struct ptx_run *run, const struct ptx_instruction *in)
{
	const struct ptx_operand *from = &in->operands[in->first];
	bool holds = ptx_compare(in, value_of(run, &from[0]), value_of(run, &from[1]));
	bool other = in->join != JOIN_NONE && value_of(run, &from[2]) & 1;

	for (unsigned i = 0; i < in->first; i++) {
		bool value = holds != (i == 1);

		if (in->join == JOIN_AND)
			value = value && other;
		else if (in->join == JOIN_OR)
			value = value || other;
		else if (in->join == JOIN_XOR)
			value = value != other;
		set(run, &in->operands[i], value);
	}
}

static uint64_t operand(const struct ptx_run *run, const struct ptx_instruction *in, unsigned index)
{
	return index < in->count ? value_of(run, &in->operands[index]) : 0;
}

/* Runs one instruction of the current thread. */
static CUresult carry_out(struct ptx_run *run, struct thread *thread)
{
	const struct ptx_instruction *in = &run->kernel->code[thread->at++];

	if (in->guarded && (registers_of(run)[in->guard] & 1) == in->guard_negated)
		return CUDA_SUCCESS;
	switch (in->op) {
	case OP_LD:
		return load(run, in);
	case OP_ST:
		return store(run, in);
	case OP_ATOM:
	case OP_RED:
		return change(run, in);
	case OP_TRAP:
		return CUDA_ERROR_LAUNCH_FAILED;
	case OP_MOV:
		move(run, in);
		break;
	case OP_CVTA:
		set(run, &in->operands[0], operand(run, in, 1));
		break;
	case OP_CVT:
		set(run, &in->operands[0], ptx_convert(in, operand(run, in, 1)));
		break;
	case OP_SETP:
		compare(run, in);
		break;
	case OP_SELP:
		set(run, &in->operands[0],
		    ptx_extend(in->type, operand(run, in, operand(run, in, 3) & 1 ? 1 : 2)));
		break;
	case OP_BRA:
		thread->at = in->target;
		break;
	case OP_BAR:
		thread->state = AT_BARRIER;
		break;
	case OP_EXIT:
		thread->state = ENDED;
		break;
	case OP_CALL:
	case OP_FENCE:
		break;
	default:
		set(run, &in->operands[0],
		    ptx_compute(in, operand(run, in, 1), operand(run, in, 2), operand(run, in, 3)));
	}
	return CUDA_SUCCESS;
}

/* Selects the next thread that can run; when all that have not ended are at the barrier, all can.
 * False if all have ended. */
static bool next_turn(struct ptx_run *run)
{
	bool any = false;

	for (size_t i = 1; i <= run->thread_count; i++) {
		size_t other = (run->thread + i) % run->thread_count;

		if (run->threads[other].state == RUNNING) {
			run->thread = other;
			return true;
		}
		any |= run->threads[other].state == AT_BARRIER;
	}
	for (size_t i = 0; i < run->thread_count; i++)
		if (run->threads[i].state == AT_BARRIER) {
			run->threads[i].state = RUNNING;
			run->thread = any ? i : run->thread;
		}
	return any;
}

static bool next_block(struct ptx_run *run)
{
	for (int i = 0; i < 3; i++) {
		if (++run->block_index[i] < run->grid[i]) {
			begin_block(run);
			return true;
		}
		run->block_index[i] = 0;
	}
	return false;
}

static CUresult digest(struct ptx_run *run)
{
	CUdeviceptr of[2];

	memcpy(of, run->parameters, sizeof(of));
	for (uint64_t i = 0; i < run->grid[0]; i++) {
		char *data = memory_at(run, of[0] + i * DIGEST_BYTES, DIGEST_BYTES, false);
		void *to =
		    memory_at(run, of[1] + i * 2 * sizeof(uint64_t), 2 * sizeof(uint64_t), true);

		if (!data || !to)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		ptx_digest(data, to);
	}
	return CUDA_SUCCESS;
}

CUresult ptx_step(struct ptx_run *run, uint64_t instructions)
{
	memset(run->windows, 0, sizeof(run->windows));
	if (ptx_is_digest(run->kernel))
		return digest(run);
	while (instructions) {
		struct thread *thread = &run->threads[run->thread];

		for (unsigned i = 0; i < TURN && thread->state == RUNNING && instructions; i++) {
			CUresult result = carry_out(run, thread);

			if (result != CUDA_SUCCESS)
				return result;
			run->clock++;
			instructions--;
		}
		if (thread->state != RUNNING || instructions)
			if (!next_turn(run) && !next_block(run))
				return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_READY;
}

/* --- what is known of a kernel ---------------------------------------------------------------- */

const struct ptx_kernel *ptx_find(const struct ptx *ptx, const char *name)
{
	for (size_t i = 0; i < ptx->kernel_count; i++)
		if (strcmp(ptx->kernels[i].name, name) == 0)
			return &ptx->kernels[i];
	return NULL;
}

bool ptx_parameter(const struct ptx_kernel *kernel, size_t index, size_t *offset, size_t *size)
{
	if (index >= kernel->parameter_count)
		return false;
	*offset = kernel->parameters[index].offset;
	*size = kernel->parameters[index].size;
	return true;
}

size_t ptx_parameter_bytes(const struct ptx_kernel *kernel)
{
	return kernel->parameter_bytes;
}

size_t ptx_shared_bytes(const struct ptx_kernel *kernel)
{
	return kernel->shared_bytes;
}

bool ptx_uses_arrays(const struct ptx_kernel *kernel)
{
	return kernel->uses_arrays;
}

bool ptx_does_something(const struct ptx_kernel *kernel)
{
	for (size_t i = 0; i < kernel->length; i++)
		switch (kernel->code[i].op) {
		case OP_LD:
		case OP_ST:
		case OP_ATOM:
		case OP_RED:
		case OP_BRA:
		case OP_TRAP:
			return true;
		default:
			break;
		}
	return false;
}

bool ptx_has_array_values(const struct ptx *ptx)
{
	return ptx->value_count;
}

void ptx_fill_arrays(const struct ptx *ptx, char *to)
{
	for (size_t i = 0; i < ptx->value_count; i++)
		if (ptx->values[i].count)
			memcpy(to + ptx->values[i].offset, ptx->values[i].bytes,
			       ptx->values[i].count);
}
