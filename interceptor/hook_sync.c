/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the device: charges nothing, but pools may shrink meanwhile. */
#include "hook.h"
#include "pool.h"

/*
 * A pool that reserves more than its release threshold shrinks when it is synchronised (driver
 * observation: the default threshold 0 returns all that is free). A process that then sits idle
 * would keep siblings from those bytes. Frameworks that care for speed set a threshold: for them,
 * and for a process without pools, this is a look at one or two words.
 */
static void synchronised(void)
{
	struct process *process = __atomic_load_n(&this_process, __ATOMIC_ACQUIRE);

	if (!process)
		return;
	for (struct pool *pool = __atomic_load_n(&process->pools, __ATOMIC_ACQUIRE); pool;
	     pool = pool->next) {
		if (__atomic_load_n(&pool->charged, __ATOMIC_RELAXED) >
		    __atomic_load_n(&pool->threshold, __ATOMIC_RELAXED))
			pool_shrunk(pool);
	}
}

CUresult cuCtxSynchronize(void)
{
	CUresult result;

	result = DRIVER(cuCtxSynchronize)();
	synchronised();
	return result;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
	CUresult result;

	result = DRIVER(cuCtxSynchronize_v2)(context);
	synchronised();
	return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult result;

	result = DRIVER(cuStreamSynchronize)(stream);
	synchronised();
	return result;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	CUresult result;

	result = DRIVER(cuStreamSynchronize_ptsz)(stream);
	synchronised();
	return result;
}

CUresult cuEventSynchronize(void *event)
{
	CUresult result;

	result = DRIVER(cuEventSynchronize)(event);
	synchronised();
	return result;
}
