/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronizing with the device charges nothing, but may shrink pools.
 *
 * A pool that reserves more than its release threshold shrinks when it is synchronized (driver
 * observation: the default threshold 0 returns all that is free). Without this hook a process that
 * then idles would keep siblings from those bytes. Frameworks usually set a threshold: for them,
 * and for a process without pools, the hook reads one word.
 */
#include "pool.h"
#include "table.h"

static CUresult synchronised(CUresult result)
{
	pool_synchronised();
	return result;
}

CUresult cuCtxSynchronize(void)
{
	return synchronised(DRIVER(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	return synchronised(DRIVER(cuCtxSynchronize_v2)(context));
}

CUresult cuStreamSynchronize(CUstream stream)
{
	return synchronised(DRIVER(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	return synchronised(DRIVER(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuEventSynchronize(void *event)
{
	return synchronised(DRIVER(cuEventSynchronize)(event));
}
