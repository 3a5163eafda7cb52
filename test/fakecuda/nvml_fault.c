/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "nvml_handle.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* NVML_ERROR_GPU_IS_LOST of nvml.h. */
#define GPU_IS_LOST ((nvmlReturn_t)15)

static bool says(const char *file, const char *fault)
{
	char text[16] = "";
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 && strncmp(text, fault, strlen(fault)) == 0;
}

nvmlReturn_t nvml_fault(void)
{
	const char *file = getenv("FAKECUDA_NVML_FAULT");

	if (!file)
		return NVML_SUCCESS;
	while (says(file, "hang")) {
		struct timespec pause = {.tv_nsec = 10000000};

		nanosleep(&pause, NULL);
	}
	return says(file, "fail") ? GPU_IS_LOST : NVML_SUCCESS;
}
