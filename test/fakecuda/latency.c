/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "latency.h"

#include "config.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* -1: not looked at yet. Whoever looks sees the same. */
static bool enabled(void)
{
	static atomic_int known = -1;
	int value = atomic_load(&known);

	if (value == -1) {
		value = config_is("FAKECUDA_LATENCY", "h100");
		atomic_store(&known, value);
	}
	return value;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void latency(enum latency nanoseconds)
{
	uint64_t end;

	if (!enabled())
		return;
	/* The driver spins in its short calls; a context's 115 ms would only keep a core busy. */
	if (nanoseconds > 1000 * 1000) {
		nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
		return;
	}
	end = now() + nanoseconds;
	while (now() < end)
		;
}
