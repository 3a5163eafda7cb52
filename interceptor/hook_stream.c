/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: each takes a little, and there may be many. */
#include "overhead.h"
#include "table.h"

static CUresult created(CUresult result)
{
	if (result == CUDA_SUCCESS)
		overhead_count_stream();
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

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
	return created(DRIVER(cuGreenCtxStreamCreate)(stream, green, flags, priority));
}
