/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuCheckpointProcess*. The caller may be the process itself: these calls do not wait for its lock,
 * as all others do until it is unlocked.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "machine_checkpoint.h"

#include <time.h>

static CUresult answer(enum machine_step step)
{
	switch (step) {
	case MACHINE_STEP_DONE:
		return CUDA_SUCCESS;
	case MACHINE_STEP_NO_PROCESS:
		return CUDA_ERROR_INVALID_VALUE;
	case MACHINE_STEP_WRONG:
		return CUDA_ERROR_ILLEGAL_STATE;
	case MACHINE_STEP_NO_MEMORY:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case MACHINE_STEP_LOST:
		return CUDA_ERROR_OPERATING_SYSTEM;
	case MACHINE_STEP_UNMOVABLE:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_ERROR_UNKNOWN;
}

/* A thread of the target takes the step, or answers, so a stopped one does not, whatever the time
 * limit. */
static CUresult enter_running(int pid)
{
	const struct timespec pace = {.tv_nsec = 10000000};
	enum machine_phase now;

	TRY(driver_enter_locked());
	TRY(driver_leave(answer(machine_phase(pid, &now))));
	while (machine_is_stopped(pid))
		nanosleep(&pace, NULL);
	return driver_enter_locked();
}

static CUresult change(int pid, enum machine_phase from, enum machine_phase to)
{
	DRIVER_ENTER_BY(enter_running(pid));
	return answer(machine_step(pid, from, to));
}

CUDA_API CUresult cuCheckpointProcessGetState(int pid, int *state)
{
	enum machine_phase phase = MACHINE_RUNNING;
	CUresult result;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	DRIVER_ENTER_BY(enter_running(pid));
	result = answer(machine_phase(pid, &phase));
	switch (phase) {
	case MACHINE_RUNNING:
		*state = CU_PROCESS_STATE_RUNNING;
		break;
	case MACHINE_LOCKED:
		*state = CU_PROCESS_STATE_LOCKED;
		break;
	case MACHINE_CHECKPOINTED:
		*state = CU_PROCESS_STATE_CHECKPOINTED;
		break;
	case MACHINE_LOST:
		*state = CU_PROCESS_STATE_FAILED;
		break;
	}
	return result;
}

/* Any thread is correct here. */
CUDA_API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	enum machine_phase phase;

	DRIVER_ENTER_BY(driver_enter_locked());
	if (!thread)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(answer(machine_phase(pid, &phase)));
	*thread = pid;
	return CUDA_SUCCESS;
}

/* Their last argument has no effect. A call under way continues to its end. */
CUDA_API CUresult cuCheckpointProcessLock(int pid)
{
	return change(pid, MACHINE_RUNNING, MACHINE_LOCKED);
}

CUDA_API CUresult cuCheckpointProcessCheckpoint(int pid)
{
	return change(pid, MACHINE_LOCKED, MACHINE_CHECKPOINTED);
}

CUDA_API CUresult cuCheckpointProcessRestore(int pid)
{
	return change(pid, MACHINE_CHECKPOINTED, MACHINE_LOCKED);
}

CUDA_API CUresult cuCheckpointProcessUnlock(int pid)
{
	return change(pid, MACHINE_LOCKED, MACHINE_RUNNING);
}
