/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the enforcer gives to a process that moves its memory itself. */
#define _GNU_SOURCE
#include "mover.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

static long long given(void)
{
	struct stat st = {0};

	return host_file >= 0 && fstat(host_file, &st) == 0 ? st.st_blocks * 512LL : -1;
}

static bool has_open(pid_t pid)
{
	char path[64], target[64];
	struct dirent *entry;
	bool has = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	EXPECT(dir != NULL);
	while (dir && (entry = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		has = has || strstr(target, "memfd:given");
	}
	if (dir)
		closedir(dir);
	return has;
}

static bool has_mapped(pid_t pid)
{
	char path[64], line[512];
	bool has = false;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	in = fopen(path, "r");
	EXPECT(in != NULL);
	while (in && fgets(line, sizeof(line), in))
		has = has || strstr(line, "memfd:given");
	if (in)
		fclose(in);
	return has;
}

/* The process receives host memory without keeping a descriptor. The file shows how much. */
void move_to_what_is_given(void)
{
	const long long needed = 2LL * (long long)ATTACH_HOST_STEP;
	long long full;

	await_step(1);
	full = used();
	set(&control->host_steps, 2);
	shut();
	for (int i = 0; i < 3; i++) {
		EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
		EXPECT(full - used() == (long long)OF_PIECES && given() == needed);
		EXPECT(has_mapped(child) && !has_open(child) && get(&control->host_asked) == 1);
		EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && given() == needed);
	}
	set_away(0);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE);
	/* (The emulator passes MADV_REMOVE to no kernel.) */
	EXPECT(emulated || (given() == 0 && !has_mapped(child)));
	/* With too little host memory a part moves, and returns intact. */
	set(&control->host_steps, 1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_HOST && place() != LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	/* Its own host memory and the given memory are adjacent. */
	set(&control->host_steps, 0);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	set_away(0);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE && (emulated || given() == 0));
	/* The requests get no answer. */
	set(&control->host_steps, -1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_HOST);
	set(&control->host_steps, 2);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && given() == needed);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	open_until_the_end();
}
