/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starts N [FAULT]: N processes create their first context at the same instant, and keep it until
 * all have tried. Prints how many succeeded. If the file FAULT exists, NVML fails (see
 * FAKECUDA_NVML_FAULT).
 *
 * starts watch: until its input ends, samples the card's used memory, and prints the highest
 * increase over the first sample, in bytes.
 */
#include "driver.h"

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void must(bool truth, const char *what)
{
	if (truth)
		return;
	perror(what);
	exit(1);
}

static int watch(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	nvmlMemory_t memory;
	unsigned long long first = 0, most = 0;
	nvmlDevice_t device;

	must(nvmlInit_v2() == 0 && nvmlDeviceGetHandleByIndex_v2(0, &device) == 0, "NVML");
	do {
		must(nvmlDeviceGetMemoryInfo(device, &memory) == 0, "nvmlDeviceGetMemoryInfo");
		if (!first) {
			first = memory.used;
			printf("ready\n");
			fflush(stdout);
		}
		if (memory.used > most)
			most = memory.used;
	} while (poll(&input, 1, 0) == 0);
	printf("%llu\n", most - first);
	return 0;
}

static void wait_for(const int *ends)
{
	char byte;

	close(ends[1]);
	must(read(ends[0], &byte, 1) == 0, "read");
}

int main(int argc, char **argv)
{
	int go[2], answers[2], end[2], count = argc > 1 ? atoi(argv[1]) : 0, made = 0;
	CUcontext context;

	if (argc > 1 && strcmp(argv[1], "watch") == 0)
		return watch();
	must(pipe(go) == 0 && pipe(answers) == 0 && pipe(end) == 0, "pipe");
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		bool answer;

		must(child >= 0, "fork");
		if (child > 0)
			continue;
		wait_for(go);
		answer = cuInit(0) == CUDA_SUCCESS &&
		         cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS;
		must(write(answers[1], &answer, 1) == 1, "write");
		wait_for(end);
		_exit(0);
	}
	if (argc > 2) {
		int fault = open(argv[2], O_WRONLY | O_CREAT, 0600);

		must(fault >= 0 && write(fault, "fail", 4) == 4, argv[2]);
	}
	close(go[1]);
	for (int i = 0; i < count; i++) {
		char answer = 0;

		must(read(answers[0], &answer, 1) == 1, "read");
		made += answer;
	}
	close(end[1]);
	for (int i = 0; i < count; i++)
		wait(NULL);
	printf("%d of %d\n", made, count);
	return 0;
}
