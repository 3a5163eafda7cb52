/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "machine_limit.h"

#include "machine_state.h"

#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define CGROUP2_MAGIC 0x63677270

static bool is_cgroup(const char *path, struct stat *info)
{
	struct statfs fs;

	return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_MAGIC && stat(path, info) == 0 &&
	       S_ISDIR(info->st_mode);
}

/*
 * Splits a path at its hierarchy's mount. The rest is "/" and names, as in /proc/self/cgroup.
 * Changes `path`.
 */
static bool below_mount(char *path, char *relative)
{
	struct stat info, above;
	size_t mount = strlen(path);
	char whole[PATH_MAX];

	if (path[0] != '/' || !is_cgroup(path, &info))
		return false;
	memcpy(whole, path, mount + 1);
	while (mount > 0) {
		char *slash = strrchr(path, '/');

		*slash = '\0';
		if (!is_cgroup(*path ? path : "/", &above) || above.st_dev != info.st_dev)
			break;
		mount = (size_t)(slash - path);
	}
	return snprintf(relative, MACHINE_CGROUP_BYTES, "%s", whole[mount] ? whole + mount : "/") <
	       (int)MACHINE_CGROUP_BYTES;
}

/* True if the cgroup is `above` or below it. */
static bool is_in(const char *cgroup, const char *above)
{
	size_t length = strcmp(above, "/") == 0 ? 0 : strlen(above);

	return *cgroup && strncmp(cgroup, above, length) == 0 &&
	       (cgroup[length] == '/' || cgroup[length] == '\0');
}

/* A process in a cgroup namespace sees a path of its own, and is under no limit here. */
void machine_limits_join(unsigned record)
{
	char *cgroup = machine_state->cgroup[record];
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[MACHINE_CGROUP_BYTES + 3];

	*cgroup = '\0';
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::/", 4) == 0)
			snprintf(cgroup, MACHINE_CGROUP_BYTES, "%s", line + 3);
	}
	if (file)
		fclose(file);
}

/* The following functions expect the state to be locked, except those of machine_limit.h. */

static uint64_t used_in(unsigned device, const char *cgroup)
{
	unsigned count = atomic_load(&machine_state->record_count);
	uint64_t shared[MACHINE_MAX_PROCESSES] = {0};
	uint64_t sum = 0;
	pid_t pid;

	objects_held(device, shared);
	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = atomic_load(&machine_state->listed[device][i]) +
		                 atomic_load(&machine_state->unlisted[device][i]) + shared[i];

		if (bytes && is_in(machine_state->cgroup[i], cgroup) &&
		    machine_record_is_live(i, &pid))
			sum += bytes;
	}
	return sum;
}

bool machine_limits_allow(unsigned device, unsigned record, uint64_t bytes)
{
	unsigned count = atomic_load(&machine_state->limit_count);

	for (unsigned i = 0; i < count; i++) {
		struct limit *limit = &machine_state->limit[i];
		uint64_t used;

		if (!*limit->cgroup || limit->device != device || limit->hard == MACHINE_NO_LIMIT ||
		    !is_in(machine_state->cgroup[record], limit->cgroup))
			continue;
		used = used_in(device, limit->cgroup);
		if (used > limit->hard || bytes > limit->hard - used)
			return false;
	}
	return true;
}

/* Drops limits of removed cgroups. */
static void forget_removed(const char *mount)
{
	unsigned count = atomic_load(&machine_state->limit_count);
	char path[PATH_MAX];
	struct stat info;

	for (unsigned i = 0; i < count; i++) {
		struct limit *limit = &machine_state->limit[i];

		snprintf(path, sizeof(path), "%s%s", mount, limit->cgroup);
		if (*limit->cgroup && (!is_cgroup(path, &info) || info.st_ino != limit->inode))
			*limit->cgroup = '\0';
	}
}

static struct limit *find(unsigned device, const char *cgroup)
{
	unsigned count = atomic_load(&machine_state->limit_count);

	for (unsigned i = 0; i < count; i++) {
		struct limit *limit = &machine_state->limit[i];

		if (limit->device == device && strcmp(limit->cgroup, cgroup) == 0)
			return limit;
	}
	return NULL;
}

static struct limit *find_or_add(unsigned device, const char *path, const char *cgroup)
{
	struct limit *limit = find(device, cgroup);
	struct stat info;

	for (unsigned i = 0; !limit && i < MACHINE_MAX_LIMITS; i++) {
		if (*machine_state->limit[i].cgroup || !is_cgroup(path, &info))
			continue;
		limit = &machine_state->limit[i];
		*limit = (struct limit){
		    .inode = info.st_ino, .device = device, .hard = MACHINE_NO_LIMIT};
		snprintf(limit->cgroup, sizeof(limit->cgroup), "%s", cgroup);
		if (i >= atomic_load(&machine_state->limit_count))
			atomic_store(&machine_state->limit_count, i + 1);
	}
	return limit;
}

/* Finds the cgroup of a path, drops the limits of removed ones, and locks the state. */
static bool begin(const char *path, char *cgroup)
{
	char given[PATH_MAX], mount[PATH_MAX];

	if (snprintf(given, sizeof(given), "%s", path) >= (int)sizeof(given))
		return false;
	memcpy(mount, given, sizeof(given));
	if (!below_mount(given, cgroup))
		return false;
	if (strcmp(cgroup, "/") != 0)
		mount[strlen(mount) - strlen(cgroup)] = '\0';
	machine_lock();
	forget_removed(mount);
	return true;
}

enum machine_limit_status machine_limit_set(unsigned device, const char *path, uint64_t hard)
{
	char cgroup[MACHINE_CGROUP_BYTES];
	enum machine_limit_status status = MACHINE_LIMIT_FULL;
	struct limit *limit;

	if (!begin(path, cgroup))
		return MACHINE_LIMIT_NO_CGROUP;
	limit = find_or_add(device, path, cgroup);
	if (limit) {
		limit->hard = hard;
		if (hard == MACHINE_NO_LIMIT)
			*limit->cgroup = '\0';
		status = MACHINE_LIMIT_OK;
	}
	machine_unlock();
	return status;
}

enum machine_limit_status machine_limit_get(unsigned device, const char *path,
                                            struct machine_limit *out)
{
	char cgroup[MACHINE_CGROUP_BYTES];
	struct limit *limit;

	if (!begin(path, cgroup))
		return MACHINE_LIMIT_NO_CGROUP;
	limit = find(device, cgroup);
	if (limit)
		*out = (struct machine_limit){limit->hard, used_in(device, cgroup)};
	machine_unlock();
	return limit ? MACHINE_LIMIT_OK : MACHINE_LIMIT_NONE;
}

void machine_limit_own(unsigned device, uint64_t *total, uint64_t *available)
{
	const char *own = machine_state->cgroup[machine_own_record()];
	unsigned count = atomic_load(&machine_state->limit_count);

	if (!count)
		return;
	machine_lock();
	for (unsigned i = 0; i < count; i++) {
		struct limit *limit = &machine_state->limit[i];
		uint64_t used;

		if (!*limit->cgroup || limit->device != device || limit->hard == MACHINE_NO_LIMIT ||
		    !is_in(own, limit->cgroup))
			continue;
		used = used_in(device, limit->cgroup);
		if (*total > limit->hard)
			*total = limit->hard;
		if (*available + used > limit->hard)
			*available = used < limit->hard ? limit->hard - used : 0;
	}
	machine_unlock();
}
