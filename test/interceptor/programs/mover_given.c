/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is given to a process that moves its memory itself, by whom it asks for that. */
#define _GNU_SOURCE
#include "mover.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

/* What there is of the file that was given. */
static long long given(void)
{
	struct stat st = {0};

	return host_file >= 0 && fstat(host_file, &st) == 0 ? st.st_blocks * 512LL : -1;
}

/* Whether a process has the file open, or mapped. */
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

/* Host memory is given to it, and it keeps no descriptor; the file itself says what it has. */
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
	/* (The emulator hands MADV_REMOVE to no kernel.) */
	EXPECT(emulated || (given() == 0 && !has_mapped(child)));
	/* As much as is given goes, and comes back; nothing is lost where there is too little. */
	set(&control->host_steps, 1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_HOST && place() != LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	/* What is its own and what was given lie beside one another. */
	set(&control->host_steps, 0);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	set_away(0);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE && (emulated || given() == 0));
	/* Nobody answers. */
	set(&control->host_steps, -1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_HOST);
	set(&control->host_steps, 2);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && given() == needed);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	open_until_the_end();
}
