/* SPDX-License-Identifier: Apache-2.0 */
#include "nvml_who.h"

#include "sibling.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

bool who_look(nvmlDevice_t device, struct who *who)
{
	*who = (struct who){.process = process_attached()};
	who->device = nvml_ledger_device(who->process, device);
	return who->device != NVML_UNNAMED && !(who->process && who->process->ledger->record);
}

static const struct ledger_lane *own_lane(const struct who *who)
{
	return &who->process->ledger->lane[who->process->lane];
}

uint32_t who_lanes(const struct who *who)
{
	uint32_t high;

	if (!who->process)
		return 0;
	high = __atomic_load_n(&who->process->ledger->high_lane, __ATOMIC_ACQUIRE);
	return high < LEDGER_LANES ? high : LEDGER_LANES - 1;
}

static bool is_near(const struct who *who, const struct ledger_lane *lane)
{
	return lane->ns_pid != 0 && lane->pid_ns == own_lane(who)->pid_ns;
}

uint32_t who_pid(const struct who *who, const struct ledger_lane *lane)
{
	return is_near(who, lane) ? lane->ns_pid : lane->pid;
}

bool who_is_dead(const struct who *who, uint32_t lane)
{
	return sibling_dead(own_lane(who), &who->process->ledger->lane[lane]);
}

static uint32_t lane_of(const struct who *who, uint32_t pid, bool host_pids)
{
	for (uint32_t i = 1; i <= who_lanes(who); i++) {
		const struct ledger_lane *lane = &who->process->ledger->lane[i];

		if (__atomic_load_n(&lane->state, __ATOMIC_ACQUIRE) == LEDGER_LIVE &&
		    (host_pids ? lane->pid == pid : is_near(who, lane) && lane->ns_pid == pid) &&
		    !sibling_dead(own_lane(who), lane))
			return i;
	}
	return 0;
}

uint32_t who_lane(const struct who *who, uint32_t pid)
{
	return lane_of(who, pid, who->host_pids);
}

/* Reports whether no process has the pid in the caller's namespace. */
static bool is_absent(uint32_t pid)
{
	int saved = errno;
	bool absent = kill((pid_t)pid, 0) != 0 && errno == ESRCH;

	errno = saved;
	return absent;
}

void who_see_kind(struct who *who, const unsigned char *pids, size_t stride, unsigned int count)
{
	unsigned int near = 0, host = 0, absent = 0;

	for (unsigned int i = 0; i < count; i++) {
		uint32_t pid;

		memcpy(&pid, pids + i * stride, sizeof(pid));
		near += lane_of(who, pid, false) != 0;
		if (lane_of(who, pid, true)) {
			host++;
			absent += is_absent(pid);
		}
	}
	who->host_pids = host > near || (host == near && absent);
}
