/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduces NVML's lists of processes to those of the slice, which have a lane in the ledger. Some
 * drivers omit a container's processes, so a lane that holds memory is added to the list of compute
 * processes.
 *
 * A process in no slice sees none. In record mode, and for a device without a UUID, lists are
 * unchanged.
 */
#include "nvml.h"
#include "pages.h"
#include "quiet.h"
#include "sibling.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define UNTOUCHED ((nvmlReturn_t)-1) /* not a result of NVML: pass the call on */

static uint32_t pid_at(const unsigned char *at)
{
	uint32_t pid;

	memcpy(&pid, at, sizeof(pid));
	return pid;
}

/* --- the slice's processes among NVML's ------------------------------------------------------- */

/* In a container NVML returns pids of the host or of the container, depending on driver and kernel.
 * A lane has both. */
struct viewer {
	struct process *process; /* NULL: in no slice */
	int device;              /* of the ledger; negative: no lane holds memory there */
	bool host_pids;          /* NVML's pids are the enforcer's */
};

/* Returns false if NVML's lists of that device are shown unchanged. */
static bool viewer_look(nvmlDevice_t device, struct viewer *viewer)
{
	*viewer = (struct viewer){.process = process_attached()};
	viewer->device = nvml_ledger_device(viewer->process, device);
	return viewer->device != NVML_UNNAMED &&
	       !(viewer->process && viewer->process->ledger->record);
}

static const struct ledger_lane *own_lane(const struct viewer *viewer)
{
	return &viewer->process->ledger->lane[viewer->process->lane];
}

/* Returns the end of the lanes, from 1, including free and dead ones. */
static uint32_t viewer_lanes(const struct viewer *viewer)
{
	return viewer->process ? ledger_lanes(viewer->process->ledger) : 0;
}

static bool is_near(const struct viewer *viewer, const struct ledger_lane *lane)
{
	return lane->ns_pid != 0 && lane->pid_ns == own_lane(viewer)->pid_ns;
}

/* Returns the pid in the caller's namespace, or the enforcer's if it has none there. */
static uint32_t viewer_pid(const struct viewer *viewer, const struct ledger_lane *lane)
{
	return is_near(viewer, lane) ? lane->ns_pid : lane->pid;
}

static uint32_t lane_of(const struct viewer *viewer, uint32_t pid, bool host_pids)
{
	for (uint32_t i = 1; i < viewer_lanes(viewer); i++) {
		const struct ledger_lane *lane = &viewer->process->ledger->lane[i];

		if (__atomic_load_n(&lane->state, __ATOMIC_ACQUIRE) == LEDGER_LIVE &&
		    (host_pids ? lane->pid == pid : is_near(viewer, lane) && lane->ns_pid == pid) &&
		    !sibling_dead(own_lane(viewer), lane))
			return i;
	}
	return 0;
}

/* Replaces NVML's pid by the caller's. Returns the process's lane; 0 if not in the slice. */
static uint32_t viewer_set_pid(const struct viewer *viewer, unsigned char *at)
{
	uint32_t lane = lane_of(viewer, pid_at(at), viewer->host_pids), pid;

	if (lane) {
		pid = viewer_pid(viewer, &viewer->process->ledger->lane[lane]);
		memcpy(at, &pid, sizeof(pid));
	}
	return lane;
}

/* Reports whether no process has the pid in the caller's namespace. */
static bool is_absent(uint32_t pid)
{
	QUIETLY;

	return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Sets host_pids from `count` pids of NVML, `stride` bytes apart: all are in the namespace in which
 * more of them are ours. (Deciding for each alone would take the host's process 3000 for the
 * container's.) On a tie, a pid that does not exist here decides. */
static void viewer_see_kind(struct viewer *viewer, const unsigned char *pids, size_t stride,
                            unsigned int count)
{
	unsigned int near = 0, host = 0, absent = 0;

	for (unsigned int i = 0; i < count; i++) {
		uint32_t pid = pid_at(pids + i * stride);

		near += lane_of(viewer, pid, false) != 0;
		if (lane_of(viewer, pid, true)) {
			host++;
			absent += is_absent(pid);
		}
	}
	viewer->host_pids = host > near || (host == near && absent);
}

/* --- lists of processes and their memory ---------------------------------------------------- */

#define LIST_TRIES 8 /* with more room each: the list may grow meanwhile */

struct list {
	nvmlDevice_t device;
	void *function;             /* takes a count and an array; NULL: the detail list */
	unsigned int version, mode; /* of the detail list */
	bool compute;               /* includes compute processes */
	size_t stride;              /* bytes of an entry */
};

/* An entry begins with pid, padding, bytes held. The rest differs. */
static nvmlReturn_t call_nvml(const struct list *list, unsigned int *count, void *infos)
{
	nvmlReturn_t (*function)(nvmlDevice_t, unsigned int *, void *);
	nvmlProcessDetailList_v1_t detail;
	nvmlReturn_t result;

	if (list->function) {
		function = (__typeof__(function))list->function;
		return function(list->device, count, infos);
	}
	detail = (nvmlProcessDetailList_v1_t){list->version, list->mode, *count, infos};
	result = NVML(nvmlDeviceGetRunningProcessDetailList)(list->device, &detail);
	*count = detail.numProcArrayEntries;
	return result;
}

/* The caller's array, which may be too small. */
struct gathered {
	unsigned char *out;
	unsigned int room, count;
};

static void gather(struct gathered *to, const void *entry, size_t stride)
{
	if (to->count < to->room)
		memcpy(to->out + to->count * stride, entry, stride);
	to->count++;
}

/* The lanes that NVML listed: a bit each. */
struct listed {
	uint64_t bits[LEDGER_LANES / 64 + 1];
};

static void gather_listed(const struct viewer *viewer, unsigned char *entries, unsigned int count,
                          size_t stride, struct listed *listed, struct gathered *to)
{
	for (unsigned int i = 0; i < count; i++) {
		unsigned char *entry = entries + i * stride;
		uint32_t lane = viewer_set_pid(viewer, entry);

		if (!lane)
			continue;
		listed->bits[lane / 64] |= 1ull << lane % 64;
		gather(to, entry, stride);
	}
}

static void gather_others(const struct viewer *viewer, const struct listed *listed, size_t stride,
                          struct gathered *to)
{
	for (uint32_t i = 1; i < viewer_lanes(viewer); i++) {
		const struct ledger_lane *lane = &viewer->process->ledger->lane[i];
		nvmlProcessDetail_v1_t entry = {.gpuInstanceId = NVML_NO_INSTANCE,
		                                .computeInstanceId = NVML_NO_INSTANCE};

		if (listed->bits[i / 64] >> i % 64 & 1 ||
		    __atomic_load_n(&lane->state, __ATOMIC_ACQUIRE) != LEDGER_LIVE)
			continue;
		entry.usedGpuMemory =
		    ledger_held(viewer->process->ledger, (uint32_t)viewer->device, i);
		if (!entry.usedGpuMemory || sibling_dead(own_lane(viewer), lane))
			continue;
		entry.pid = viewer_pid(viewer, lane);
		gather(to, &entry, stride);
	}
}

/* Adds the slice's part of a list with room for *count entries. *count becomes NVML's. */
static nvmlReturn_t gather_answer(const struct list *list, struct viewer *viewer,
                                  unsigned int *count, struct gathered *to)
{
	size_t size = (size_t)*count * sizeof(nvmlProcessDetail_v1_t); /* the largest */
	struct listed listed = {0};
	unsigned int room = *count;
	nvmlReturn_t result;
	unsigned char *entries = pages_map(size);

	if (!entries)
		return NVML_ERROR_MEMORY;
	result = call_nvml(list, count, entries);
	if (result == NVML_SUCCESS) {
		*count = *count < room ? *count : room;
		viewer_see_kind(viewer, entries, list->stride, *count);
		gather_listed(viewer, entries, *count, list->stride, &listed, to);
		if (list->compute && viewer->device >= 0)
			gather_others(viewer, &listed, list->stride, to);
	}
	munmap(entries, size);
	return result;
}

/* Follows NVML's reference: *count is the room, and becomes the number of entries, the only result
 * if the room is too small. */
static nvmlReturn_t slice_of(const struct list *list, unsigned int *count, void *infos)
{
	struct gathered to = {.out = infos, .room = *count};
	nvmlReturn_t result = UNTOUCHED;
	unsigned int room = 256;
	struct viewer viewer;

	/* NVML refuses room without an array. */
	if ((!infos && to.room) || !viewer_look(list->device, &viewer))
		return UNTOUCHED;
	for (int tries = 0; tries < LIST_TRIES; tries++) {
		unsigned int found = room;

		result = gather_answer(list, &viewer, &found, &to);
		if (result != NVML_ERROR_INSUFFICIENT_SIZE || found <= room)
			break;
		room = found + 64; /* more processes may start */
	}
	if (result != NVML_SUCCESS)
		return result;
	*count = to.count;
	return to.count > to.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LIST(name, type, computes)                                                                 \
	nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)                   \
	{                                                                                          \
		struct list list = {.device = device,                                              \
		                    .function = (void *)NVML(name),                                \
		                    .compute = computes,                                           \
		                    .stride = sizeof(type)};                                       \
		nvmlReturn_t result = UNTOUCHED;                                                   \
                                                                                                   \
		if (count)                                                                         \
			result = slice_of(&list, count, infos);                                    \
		return result == UNTOUCHED ? NVML(name)(device, count, infos) : result;            \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_v2_t, false)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_v1_t *list)
{
	nvmlReturn_t result = UNTOUCHED;

	if (list && list->version == NVML_PROCESS_DETAIL_LIST_V1) {
		struct list asked = {.device = device,
		                     .version = list->version,
		                     .mode = list->mode,
		                     .compute = list->mode == NVML_PROCESS_MODE_COMPUTE ||
		                                list->mode == NVML_PROCESS_MODE_ALL,
		                     .stride = sizeof(nvmlProcessDetail_v1_t)};

		result = slice_of(&asked, &list->numProcArrayEntries, list->procArray);
	}
	if (result != UNTOUCHED)
		return result;
	return NVML(nvmlDeviceGetRunningProcessDetailList)(device, list);
}

/* --- utilization samples -------------------------------------------------------------------- */

/* Keeps the slice's samples among `count` of `stride` bytes, and returns their number. Without
 * enough room NVML returns only a maximum count, which is passed on. */
static unsigned int keep_own_samples(nvmlDevice_t device, unsigned char *samples,
                                     unsigned int count, size_t stride, size_t pid_offset)
{
	unsigned int kept = 0;
	struct viewer viewer;

	if (!viewer_look(device, &viewer))
		return count;
	viewer_see_kind(&viewer, samples + pid_offset, stride, count);
	for (unsigned int i = 0; i < count; i++) {
		unsigned char *sample = samples + i * stride;
		if (viewer_set_pid(&viewer, sample + pid_offset))
			memmove(samples + kept++ * stride, sample, stride);
	}
	memset(samples + kept * stride, 0, (count - kept) * stride);
	return kept;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since)
{
	nvmlReturn_t result = NVML(nvmlDeviceGetProcessUtilization)(device, samples, count, since);

	if (result != NVML_SUCCESS || !samples || !count || !*count)
		return result;
	*count = keep_own_samples(device, (unsigned char *)samples, *count, sizeof(*samples),
	                          offsetof(nvmlProcessUtilizationSample_t, pid));
	return *count ? result : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_v1_t *info)
{
	nvmlReturn_t result = NVML(nvmlDeviceGetProcessesUtilizationInfo)(device, info);

	if (result != NVML_SUCCESS || !info || !info->procUtilArray || !info->processSamplesCount ||
	    info->version != NVML_PROCESSES_UTILIZATION_INFO_V1)
		return result;
	info->processSamplesCount = keep_own_samples(
	    device, (unsigned char *)info->procUtilArray, info->processSamplesCount,
	    sizeof(*info->procUtilArray), offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
	return info->processSamplesCount ? result : NVML_ERROR_NOT_FOUND;
}
