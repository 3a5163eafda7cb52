/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams are charged (context.h) before they are made. If a card's cost differs, driver truth
 * corrects the charge before the next request.
 */
#include "context.h"
#include "grant.h"
#include "overhead.h"
#include "recording.h"
#include "stream.h"
#include "table.h"

/* The ledger may exceed the driver's figure until the device is settled. */
static bool charge(CUdevice ordinal, uint64_t bytes)
{
	struct process *process;
	int device;

	if (!bytes)
		return true;
	if (grant_if_free(ordinal, bytes, KIND_OVERHEAD) != GRANTED) {
		overhead_settle(ordinal);
		if (grant(ordinal, bytes, KIND_OVERHEAD, LEDGER_CALL_STREAM) != GRANTED)
			return false;
	}
	process = process_get();
	device = process_device(process, ordinal);
	if (device >= 0)
		overhead_loosen(device, bytes);
	return true;
}

/* Charges a stream in advance. False if it does not fit. */
static bool begin(uint64_t context, CUdevice ordinal)
{
	struct streams streams;
	uint64_t more;

	if (!context || ordinal < 0)
		return true;
	streams = context_add_stream(context, ordinal);
	more = context_stream_bytes(streams.after) - context_stream_bytes(streams.before);
	if (charge(ordinal, more))
		return true;
	context_drop_stream(context, false);
	return false;
}

static CUresult created(CUresult result, uint64_t context)
{
	if (result != CUDA_SUCCESS)
		context_drop_stream(context, true);
	return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	uint64_t context = context_current();

	if (!begin(context, process_current_ordinal()))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuStreamCreate)(stream, flags), context);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	uint64_t context = context_current();

	if (!begin(context, process_current_ordinal()))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuStreamCreateWithPriority)(stream, flags, priority), context);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                int priority)
{
	struct context known;

	(void)context_get((uint64_t)(uintptr_t)green, &known);
	if (!begin(known.primary, known.ordinal))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(DRIVER(cuGreenCtxStreamCreate)(stream, green, flags, priority),
	               known.primary);
}

/* A capture ends with its stream. The driver may reuse the handle at once. */
static CUresult destroy(CUresult (*call)(CUstream stream), CUstream stream)
{
	uint64_t context = context_owner(stream_context(stream));
	struct recording recording;
	bool noted = recording_take(stream, &recording);
	CUresult result = call(stream);

	if (noted && result != CUDA_SUCCESS)
		recording_put(stream, &recording);
	if (result == CUDA_SUCCESS)
		context_drop_stream(context, true);
	return result;
}

CUresult cuStreamDestroy(CUstream stream)
{
	return destroy(DRIVER(cuStreamDestroy), stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	return destroy(DRIVER(cuStreamDestroy_v2), stream);
}
