/* SPDX-License-Identifier: Apache-2.0 */
/*
 * putaway checkpoint|restore COMMAND: has the memory of the first process of that name put away, or
 * brought back. Prints the last answer of the driver.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int call(void *driver, const char *name, int pid)
{
	int (*function)(int, void *);

	*(void **)&function = dlsym(driver, name);
	return function ? function(pid, NULL) : -1;
}

static int find(const char *command)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int found = 0;

	while (processes && (entry = readdir(processes))) {
		char path[300], name[64] = "";
		FILE *comm;

		snprintf(path, sizeof(path), "/proc/%s/comm", entry->d_name);
		comm = fopen(path, "r");
		if (!comm)
			continue;
		if (!found && fscanf(comm, "%63s", name) == 1 && strcmp(name, command) == 0)
			found = atoi(entry->d_name);
		fclose(comm);
	}
	if (processes)
		closedir(processes);
	return found;
}

int main(int count, char **argument)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned int) = NULL;
	int pid, result;

	if (driver)
		*(void **)&init = dlsym(driver, "cuInit");
	if (count != 3 || !init || init(0) || !(pid = find(argument[2])))
		return 64;
	if (strcmp(argument[1], "checkpoint") == 0) {
		result = call(driver, "cuCheckpointProcessLock", pid);
		if (result == 0)
			result = call(driver, "cuCheckpointProcessCheckpoint", pid);
	} else {
		result = call(driver, "cuCheckpointProcessRestore", pid);
		if (result == 0)
			result = call(driver, "cuCheckpointProcessUnlock", pid);
	}
	printf("%d\n", result);
	return result != 0;
}
