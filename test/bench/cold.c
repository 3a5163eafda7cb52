/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "subjects.h"

#include "driver.h"

#include <stdio.h>
#include <unistd.h>

#define EACH 20000
#define BYTES 512
/* The ways alternate after this many calls. A prime: the driver takes a new block at every 4096th
 * allocation, which must fall on each way equally often. */
#define TURN 61

static CUdeviceptr kept[2][EACH];

static void allocate(int which, int i)
{
	CALL(cuMemAlloc, &kept[which][i], BYTES);
}

static void free_one(int which, int i)
{
	CALL(cuMemFree, kept[which][i]);
}

/* The order is ABBA, and which of the ways is A alternates between processes. */
static void take_turns(const char *name, void (*once)(int which, int i))
{
	int64_t took[2] = {0};
	int done[2] = {0};

	for (int turn = (int)getpid() & 1; done[0] < EACH || done[1] < EACH; turn++) {
		int which = (turn ^ turn >> 1) & 1, end = done[which] + TURN;
		int64_t begun;

		way = which ? &program : &own;
		begun = now();
		for (; done[which] < end && done[which] < EACH; done[which]++)
			once(which, done[which]);
		took[which] += now() - begun;
	}
	way = &program;
	printf("{\"call\":\"%s\",\"native_ns\":%.2f,\"slice_ns\":%.2f,\"ratio\":%.4f}\n", name,
	       (double)took[0] / EACH, (double)took[1] / EACH, (double)took[1] / (double)took[0]);
}

void cold_measure(void)
{
	driver_begin();
	measure_stay();
	take_turns("cuMemAlloc 512 bytes, kept, cold", allocate);
	take_turns("cuMemFree of those, cold", free_one);
}
