/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: each takes a little, and there may be many. What one took stays when it is destroyed,
 * for the next one (driver observation, H100, 580.159.04). */
#include "overhead.h"
#include "recording.h"
#include "table.h"

static CUresult created(CUresult result)
{
	if (result == CUDA_SUCCESS)
		overhead_stream_made();
	return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return created(DRIVER(cuStreamCreate)(stream, flags));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	return created(DRIVER(cuStreamCreateWithPriority)(stream, flags, priority));
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                int priority)
{
	return created(DRIVER(cuGreenCtxStreamCreate)(stream, green, flags, priority));
}

/* A recording ends with its stream. The driver may use its handle again at once. */
static CUresult destroy(CUresult (*call)(CUstream stream), CUstream stream)
{
	struct recording recording;
	bool noted = recording_take(stream, &recording);
	CUresult result = call(stream);

	if (noted && result != CUDA_SUCCESS)
		recording_put(stream, &recording);
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
