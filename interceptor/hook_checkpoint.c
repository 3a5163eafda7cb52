/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuCheckpointProcess*: a process of the slice has another's memory put away to the host, or its
 * own, and brought back. The lane of that process is its own to write, and it stands still; so the
 * enforcer lets others have what it is charged for meanwhile, and says before a restore whether
 * there is room again. Who does not reach the enforcer restores nothing.
 *
 * What is checkpointed from outside the slice (from the host, say) stays charged.
 */
#include "attach_client.h"
#include "process.h"
#include "quiet.h"
#include "table.h"

static bool tell(enum attach_op op, int pid)
{
	struct attach_request request = {.op = (uint16_t)op, .bytes = (uint64_t)(unsigned int)pid};
	struct attach_reply reply = {0};
	struct quiet quiet = quiet_begin();
	enum ask_result result = ask_enforcer(&request, &reply, NULL, NULL);

	quiet_end(quiet);
	/* A process that is not of the slice is not the slice's to count. */
	return result == ASK_ANSWERED &&
	       (reply.status == ATTACH_OK || reply.status == ATTACH_NOT_MEMBER);
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
	CUresult result;

	result = DRIVER(cuCheckpointProcessCheckpoint)(pid, arguments);
	if (result == CUDA_SUCCESS && process_attached())
		(void)tell(ATTACH_OP_SUSPEND, pid);
	return result;
}

CUresult cuCheckpointProcessRestore(int pid, void *arguments)
{
	CUresult result;

	if (!process_attached() || !tell(ATTACH_OP_RESUME, pid))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = DRIVER(cuCheckpointProcessRestore)(pid, arguments);
	if (result != CUDA_SUCCESS)
		(void)tell(ATTACH_OP_SUSPEND, pid);
	return result;
}
