/* SPDX-License-Identifier: Apache-2.0 */
#include "sibling.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* Linux 5.3, all architectures */
#endif

/* Returns a process's start time in clock ticks since boot (proc(5), stat, 22); 0 if unknown. */
static uint64_t start_of(uint32_t pid)
{
	char path[32], line[1024], *field;
	uint64_t start = 0;
	ssize_t n;
	int f;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	f = open(path, O_RDONLY | O_CLOEXEC);
	if (f < 0)
		return 0;
	n = read(f, line, sizeof(line) - 1);
	close(f);
	if (n <= 0)
		return 0;
	line[n] = '\0';
	/* Field 2 is the command's name in parentheses, and may hold parentheses and spaces. */
	field = strrchr(line, ')');
	for (int i = 2; field && i < 22; i++)
		field = strchr(field + 1, ' ');
	/* Not strtoull: with glibc 2.38 and newer it becomes a symbol that older versions lack. */
	for (field = field ? field + 1 : line + n; *field >= '0' && *field <= '9'; field++)
		start = start * 10 + (uint64_t)(*field - '0');
	return start;
}

/* Returns 1 if dead, 0 if alive or unknown. Dead means all threads: then the driver has freed what
 * it held for it. */
static int is_dead(uint32_t pid)
{
	int f = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = {.fd = f, .events = POLLIN};
	int dead;

	if (f < 0) {
		if (errno == ENOSYS)
			return kill((pid_t)pid, 0) < 0 && errno == ESRCH;
		return errno == ESRCH;
	}
	dead = poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
	close(f);
	return dead;
}

bool sibling_dead(const struct ledger_lane *me, const struct ledger_lane *other)
{
	uint32_t pid = other->ns_pid;
	uint64_t start;

	if (other->pid_ns != me->pid_ns || pid == 0)
		return false;
	if (is_dead(pid))
		return true;
	/* The pid may be reused. In another time namespace, start times do not match the
	 * enforcer's. */
	start = start_of(pid);
	return start != 0 && start != other->start && start_of(me->ns_pid) == me->start;
}

bool sibling_loads(const struct ledger *ledger, uint32_t own)
{
	bool any = false;

	for (uint32_t lane = 1; !any && lane < ledger_lanes(ledger); lane++)
		any = lane != own && ledger_loads(ledger, lane).under_way;
	return any;
}

bool sibling_settle_dead(struct ledger *ledger, uint32_t device, uint32_t own)
{
	const struct ledger_lane *me = &ledger->lane[own];
	bool recovered = false;

	for (uint32_t lane = 1; lane < ledger_lanes(ledger); lane++) {
		const struct ledger_lane *other = &ledger->lane[lane];
		uint64_t generation = __atomic_load_n(&other->generation, __ATOMIC_ACQUIRE);
		uint64_t bytes = 0;

		if (lane == own ||
		    __atomic_load_n(&other->state, __ATOMIC_ACQUIRE) != LEDGER_LIVE ||
		    ledger_held(ledger, device, lane) == 0 || !sibling_dead(me, other))
			continue;
		if (ledger_settle(ledger, device, lane, generation, &bytes) == LEDGER_OK && bytes)
			recovered = true;
	}
	return recovered;
}
