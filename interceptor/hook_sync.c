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

#define SYNCHRONISES(name, parameters, arguments)                                                  \
	CUresult name parameters                                                                   \
	{                                                                                          \
		return synchronised(DRIVER(name) arguments);                                       \
	}

SYNCHRONISES(cuCtxSynchronize, (void), ())
SYNCHRONISES(cuCtxSynchronize_v2, (CUcontext context), (context))
SYNCHRONISES(cuStreamSynchronize, (CUstream stream), (stream))
SYNCHRONISES(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
SYNCHRONISES(cuEventSynchronize, (void *event), (event))
