/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One H100 80GB HBM3, driver 580.159.04: NVML shows 81,559 MiB and CUDA 81,079 of them. */
#define H100_MEMORY (81559 * MiB)
#define H100_RESERVED (480 * MiB)
/* Each context adds 518 MiB to what NVML lists for its process, and more to the card's figure; one
 * of the first cuCtxCreate took another MiB of the card. */
#define H100_CONTEXT (518 * MiB)
#define H100_CONTEXT_UNLISTED 5832704
#define H100_OLD_CONTEXT_UNLISTED (1 * MiB)

/* With an invalid value a test would test something else: reports it and stops. */
static void refuse(const char *variable, const char *value, const char *accepted)
{
	fprintf(stderr, "fakecuda: %s=%s: accepted is %s\n", variable, value, accepted);
	abort();
}

static bool is_set(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value;
}

static uint64_t size_from(const char *variable, uint64_t otherwise)
{
	const char *value = getenv(variable);
	unsigned shift = 0;
	unsigned long long number;
	char *end;

	if (!value || !*value)
		return otherwise;
	number = strtoull(value, &end, 10);
	if (end == value)
		refuse(variable, value, "a size as 8589934592, 8192M or 8G");
	switch (*end) {
	case 'k':
	case 'K':
		shift = 10;
		break;
	case 'm':
	case 'M':
		shift = 20;
		break;
	case 'g':
	case 'G':
		shift = 30;
		break;
	}
	if (shift)
		end++;
	if (strcmp(end, "") != 0 && strcmp(end, "iB") != 0)
		refuse(variable, value, "a size as 8589934592, 8192M or 8G");
	return (uint64_t)number << shift;
}

void config_state_path(char *path, size_t size)
{
	const char *value = getenv("FAKECUDA_STATE");

	if (value && *value)
		snprintf(path, size, "%s", value);
	else
		snprintf(path, size, "/dev/shm/gpuslice-fakecuda-%u", (unsigned)getuid());
}

unsigned config_device_count(void)
{
	static const char variable[] = "FAKECUDA_DEVICES";
	const char *value = getenv(variable);
	unsigned long count;
	char *end;

	if (!value || !*value)
		return 1;
	count = strtoul(value, &end, 10);
	if (*end || count > MACHINE_MAX_DEVICES)
		refuse(variable, value, "0 to 16");
	return (unsigned)count;
}

uint64_t config_device_memory(void)
{
	return size_from("FAKECUDA_MEMORY", H100_MEMORY);
}

uint64_t config_device_reserved(void)
{
	/* A test with a card of 8G needs round figures in CUDA and NVML alike. */
	return size_from("FAKECUDA_RESERVED", is_set("FAKECUDA_MEMORY") ? 0 : H100_RESERVED);
}

static struct {
	pthread_once_t once;
	uint64_t listed, unlisted, old;
} context = {.once = PTHREAD_ONCE_INIT};

/* Read once, since a program may clear its environment. With a size of a test's own choice the rest
 * is 0. */
static void learn_context(void)
{
	bool chosen = is_set("FAKECUDA_CONTEXT");

	context.listed = size_from("FAKECUDA_CONTEXT", H100_CONTEXT);
	context.unlisted = chosen ? 0 : H100_CONTEXT_UNLISTED;
	context.old = chosen ? 0 : H100_OLD_CONTEXT_UNLISTED;
}

uint64_t config_context_bytes(void)
{
	pthread_once(&context.once, learn_context);
	return context.listed;
}

uint64_t config_context_unlisted(void)
{
	pthread_once(&context.once, learn_context);
	return context.unlisted;
}

uint64_t config_old_context_unlisted(void)
{
	pthread_once(&context.once, learn_context);
	return context.old;
}

bool config_is(const char *variable, const char *value)
{
	const char *actual = getenv(variable);

	return actual && strcmp(actual, value) == 0;
}
