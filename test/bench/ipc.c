/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#define OPEN_FLAGS 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

static CUipcMemHandle exported;

void ipc_export(void)
{
	CUdeviceptr p;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	driver_begin();
	CALL(cuMemAlloc, &p, 2u << 20);
	CALL(cuIpcGetMemHandle, &exported, p);
	if (write(STDOUT_FILENO, &exported, sizeof(exported)) == sizeof(exported))
		pause();
}

static bool can_open(void)
{
	CUdeviceptr p;
	int ends[2];
	bool got;

	if (!DRIVER_CAN(cuIpcGetMemHandle) || !DRIVER_CAN(cuIpcOpenMemHandle) ||
	    !DRIVER_CAN(cuIpcCloseMemHandle) || pipe2(ends, O_CLOEXEC) != 0)
		return false;
	/* A process cannot open its own export. */
	(void)start_again((const char *const[]){"cost", "export", NULL}, ends[1]);
	close(ends[1]);
	got = read(ends[0], &exported, sizeof(exported)) == sizeof(exported);
	close(ends[0]);
	/* Some containers forbid opening it. */
	return got && program.cuIpcOpenMemHandle(&p, exported, OPEN_FLAGS) == CUDA_SUCCESS &&
	       program.cuIpcCloseMemHandle(p) == CUDA_SUCCESS;
}

static void open_close(int i)
{
	CUdeviceptr p;

	(void)i;
	CALL(cuIpcOpenMemHandle, &p, exported, OPEN_FLAGS);
	CALL(cuIpcCloseMemHandle, p);
}

const struct call call_ipc = {
    .name = "cuIpcOpenMemHandle + Close 2 MiB", .can = can_open, .once = open_close};
