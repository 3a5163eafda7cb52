/* SPDX-License-Identifier: Apache-2.0 */
#include "leaving.h"

#include "block.h"
#include "function.h"
#include "hold.h"
#include "overhead.h"
#include "piece.h"
#include "pool.h"
#include "recording.h"

struct leaving {
	uint64_t handle;
	bool known;
	struct context context;
};

static void set_owner(uint64_t from, uint64_t to)
{
	if (!from)
		return;
	hold_set_owner(from, to);
	block_set_owner(from, to);
}

/* Return an owner that no context has: handles are even. */
static uint64_t apart(uint64_t handle)
{
	return handle | 1;
}

static struct leaving leave(uint64_t handle)
{
	struct leaving leaving = {.handle = handle};

	leaving.known = context_take(handle, &leaving.context);
	set_owner(handle, apart(handle));
	return leaving;
}

static CUresult left(const struct leaving *leaving, CUresult result)
{
	const struct context *context = &leaving->context;

	if (!leaving->handle)
		return result;
	if (result != CUDA_SUCCESS) {
		set_owner(apart(leaving->handle), leaving->handle);
		if (leaving->known) {
			context_note(leaving->handle, context);
			function_contexts_changed();
		}
		return result;
	}
	recording_context_gone(leaving->handle);
	hold_owner_gone(apart(leaving->handle));
	piece_owner_gone(apart(leaving->handle));
	block_owner_gone(apart(leaving->handle));
	if (!leaving->known)
		return result;
	function_contexts_changed();
	(void)pool_settle_all(context->ordinal, true);
	overhead_tighten(context->ordinal, context_stream_bytes(context->most_streams));
	process_release(context->ordinal, context->heap, KIND_MEMORY);
	process_release(context->ordinal, context->bytes + context->stack_bytes, KIND_OVERHEAD);
	return result;
}

CUresult leaving_context(CUresult (*call)(CUcontext context), CUcontext context)
{
	struct leaving leaving = leave((uint64_t)(uintptr_t)context);
	CUdevice device = leaving.known ? leaving.context.ordinal : -1;
	CUresult result;

	overhead_change_begin(device);
	result = left(&leaving, call(context));
	overhead_change_end(device);
	overhead_settle_loose(device);
	return result;
}

struct primary *leaving_primary(CUdevice device)
{
	struct primary *primary = context_primary(device);

	if (!primary)
		return NULL;
	lock_take(&primary->lock);
	overhead_change_begin(device);
	return primary;
}

CUresult left_primary(struct primary *primary, CUdevice device, CUresult result)
{
	bool active = context_primary_active(device);

	if (result == CUDA_SUCCESS && primary->handle && !active) {
		struct leaving leaving = leave(primary->handle);

		primary->handle = 0;
		result = left(&leaving, result);
	}
	overhead_change_end(device);
	lock_give(&primary->lock);
	if (!active)
		overhead_settle_loose(device);
	return result;
}
