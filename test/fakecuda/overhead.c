/* SPDX-License-Identifier: Apache-2.0 */
#include "overhead.h"

#include "config.h"
#include "vram.h"

/* Observed: the first arrays of a few bytes fit in what the context has. How much that is was not
 * observed. */
#define CODE_ROOM (64 * 1024ull)

/* Observed: 100, 1,000 and 10,000 streams take 54, 546 and 5,468 MiB. */
#define STREAM_BYTES (560 * 1024ull)

#define CARD_THREADS ((uint64_t)CARD_PROCESSORS * CARD_PROCESSOR_THREADS)
/* Observed: stacks take this much in addition before the sum is rounded up, or up to 128 KiB
 * less. */
#define STACK_MORE (512 * 1024ull)

/* Observed for 100,000 nodes, which take 220 MiB; small graphs take nothing. */
#define NODES_FREE 10000
#define NODE_BYTES 2563

/* Changes *held to `wanted`, on the card, too. */
static CUresult resize(CUcontext context, uint64_t *held, uint64_t wanted)
{
	if (wanted > *held && !device_charge(context->device, wanted - *held))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (wanted < *held)
		device_release(context->device, *held - wanted);
	context->listed += wanted - *held;
	*held = wanted;
	return CUDA_SUCCESS;
}

CUresult overhead_keep(CUcontext context, uint64_t bytes)
{
	uint64_t none = 0;

	return resize(context_holder(context), &none, bytes);
}

static uint64_t steps(uint64_t bytes)
{
	return round_up(bytes, VRAM_BLOCK);
}

/* Small modules share blocks; a large one has its own. */
static CUresult resize_code(struct overhead *overhead, CUcontext context)
{
	uint64_t small = overhead->small_code;

	return resize(context, &overhead->code,
	              overhead->large_code + (small > CODE_ROOM ? steps(small - CODE_ROOM) : 0));
}

CUresult overhead_take_code(CUcontext context, uint64_t bytes)
{
	struct overhead *overhead;
	struct overhead before;
	CUresult result;

	context = context_holder(context);
	overhead = &context->overhead;
	before = *overhead;
	if (bytes > device_capacity(context->device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes > VRAM_SMALL)
		overhead->large_code += steps(bytes);
	else
		overhead->small_code += bytes;
	result = resize_code(overhead, context);
	if (result != CUDA_SUCCESS)
		*overhead = before;
	return result;
}

void overhead_give_code(CUcontext context, uint64_t bytes)
{
	struct overhead *overhead;

	context = context_holder(context);
	overhead = &context->overhead;
	if (bytes > VRAM_SMALL)
		overhead->large_code -= steps(bytes);
	else
		overhead->small_code -= bytes;
	resize_code(overhead, context);
}

static uint64_t stacks(uint64_t bytes)
{
	return steps(bytes * CARD_THREADS + STACK_MORE);
}

void overhead_start(CUcontext context, uint64_t stack)
{
	context->overhead = (struct overhead){.stack = stacks(stack), .stack_first = stacks(stack)};
}

bool overhead_stack_exists(const struct CUctx_st *context, uint64_t bytes)
{
	return bytes <= device_capacity(context->device) / CARD_THREADS;
}

CUresult overhead_set_stack(CUcontext context, uint64_t bytes)
{
	uint64_t first, least, cost = config_context_bytes();

	context = context_holder(context);
	if (!overhead_stack_exists(context, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* The context's cost includes the first stacks. A context that was made cheaper than its
	 * stacks has nothing to release. */
	first = context->overhead.stack_first;
	least = first > cost ? first - cost : 0;
	bytes = stacks(bytes);
	return resize(context, &context->overhead.stack, bytes > least ? bytes : least);
}

CUresult overhead_add_stream(CUcontext context)
{
	struct overhead *overhead;
	CUresult result = CUDA_SUCCESS;
	uint64_t wanted;

	context = context_holder(context);
	overhead = &context->overhead;
	/* Rounded down: a context has room for the first few streams. */
	wanted = (overhead->stream_count + 1) * STREAM_BYTES / VRAM_BLOCK * VRAM_BLOCK;
	if (wanted > overhead->streams)
		result = resize(context, &overhead->streams, wanted);
	if (result == CUDA_SUCCESS)
		overhead->stream_count++;
	return result;
}

void overhead_drop_stream(CUcontext context)
{
	context_holder(context)->overhead.stream_count--;
}

CUresult overhead_add_nodes(CUcontext context, uint64_t count)
{
	struct overhead *overhead;
	CUresult result = CUDA_SUCCESS;
	uint64_t wanted = 0;

	context = context_holder(context);
	overhead = &context->overhead;
	if (overhead->node_count + count > NODES_FREE)
		wanted = steps((overhead->node_count + count - NODES_FREE) * NODE_BYTES);
	if (wanted > overhead->nodes)
		result = resize(context, &overhead->nodes, wanted);
	if (result == CUDA_SUCCESS)
		overhead->node_count += count;
	return result;
}

/* The context may have been reset since, and may count from 0 again. */
void overhead_drop_nodes(CUcontext context, uint64_t count)
{
	uint64_t *nodes = &context_holder(context)->overhead.node_count;

	*nodes -= count < *nodes ? count : *nodes;
}
