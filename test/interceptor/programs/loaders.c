/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loaders WAY ORDER QUOTA DIRECTORY: reaches the driver as ordinary programs do that bypass the
 * loader's global scope, and allocates until it is refused. Run in a slice of QUOTA bytes; not
 * linked with libcuda. WAY:
 *
 *   by-path        libcuda by its absolute path
 *   copy           a copy of libcuda of another name
 *   dlmopen        libcuda in a namespace of its own
 *   libc-dlsym     dlsym from the C library's handle
 *   libc-dlvsym    dlsym from the C library's handle by its version
 *   next-dlsym     a plugin that has dlsym from dlsym(RTLD_NEXT)
 *   plugin-linked, plugin-opens, plugin-nested
 *                  a plugin of plugin.c in a namespace of its own
 *
 * ORDER: `alone`; `after` libcuda.so.1 was opened as usual and half of the quota allocated by it;
 * `before` that, with the allocations after it. DIRECTORY has the plugins, and room for a copy.
 *
 * Exactly what fits in the quota must be granted. Prints a line, and exits 0 if so.
 *
 *   gcc -std=gnu11 -Iinterceptor -o loaders test/interceptor/programs/loaders.c -ldl
 *   gcc -std=gnu11 -Iinterceptor -shared -fPIC -DLINKED -o plugin-linked.so
 *       test/interceptor/programs/plugin.c -lcuda -ldl     (OPENS, NESTS, NEXT: without -lcuda)
 */
#define _GNU_SOURCE
#include "take.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTEXT (640ull << 20) /* more than a context takes */

typedef void take_function(const char *directory, unsigned long long most, struct taken *taken);
typedef void *dlsym_function(void *handle, const char *name);

static const char *directory;

static void *handle;
static dlsym_function *volatile by = dlsym;
static take_function *plugin;
static char wrong[512];

static void *from_handle(const char *name)
{
	return by(handle, name);
}

static void *from_common(const char *name)
{
	static void *common;

	if (!common)
		common = dlopen("libcuda.so.1", RTLD_NOW);
	return common ? dlsym(common, name) : NULL;
}

static const char *home(const void *function)
{
	Dl_info info;

	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return "nowhere";
	return strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
}

/* Find the path of libcuda.so.1 in another process, so that this one has not opened it. */
static void find_driver(char path[512])
{
	int ends[2], status = 1;
	ssize_t length;
	pid_t child;

	path[0] = '\0';
	if (pipe(ends) || (child = fork()) < 0)
		return;
	if (child == 0) {
		void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
		struct link_map *map = NULL;
		char real[PATH_MAX];

		_exit(!cuda || dlinfo(cuda, RTLD_DI_LINKMAP, &map) ||
		      !realpath(map->l_name, real) ||
		      write(ends[1], real, strlen(real)) != (ssize_t)strlen(real));
	}
	close(ends[1]);
	length = read(ends[0], path, 511);
	close(ends[0]);
	waitpid(child, &status, 0);
	path[status || length < 0 ? 0 : length] = '\0';
}

static void copy_driver(char path[512])
{
	char to[512];
	struct stat s = {0};
	int in = open(path, O_RDONLY | O_CLOEXEC), out;

	snprintf(to, sizeof(to), "%s/of-another-name.so", directory);
	out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	if (in < 0 || out < 0 || fstat(in, &s))
		snprintf(wrong, sizeof(wrong), "no copy in %s", directory);
	for (off_t done = 0; !wrong[0] && done < s.st_size;) {
		if (sendfile(out, in, &done, (size_t)(s.st_size - done)) <= 0)
			snprintf(wrong, sizeof(wrong), "no whole copy in %s", directory);
	}
	close(in);
	close(out);
	snprintf(path, 512, "%s", to);
}

static void take_dlsym(bool versioned)
{
#if defined(__x86_64__)
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#else
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#endif
	/* Before glibc 2.34 libdl had it. */
	void *libc = dlopen("libc.so.6", RTLD_NOW), *libdl = dlopen("libdl.so.2", RTLD_NOW);
	void *found = NULL, *strlen_by, *next_by;

	if (libc && libdl && !versioned && !(found = dlsym(libc, "dlsym")))
		found = dlsym(libdl, "dlsym");
	for (size_t i = 0; libc && libdl && versioned && !found && i < 2; i++) {
		if (!(found = dlvsym(libc, "dlsym", versions[i])))
			found = dlvsym(libdl, "dlsym", versions[i]);
	}
	if (!found) {
		snprintf(wrong, sizeof(wrong), "the C library has no dlsym");
		return;
	}
	by = (dlsym_function *)found;
	handle = dlopen("libcuda.so.1", RTLD_NOW);
	strlen_by = by(libc, "strlen");
	next_by = by(RTLD_NEXT, "strlen");
	if (strlen_by != dlsym(libc, "strlen") || strncmp(home(strlen_by), "libc.so", 7) != 0)
		snprintf(wrong, sizeof(wrong), "strlen of the C library is in %s", home(strlen_by));
	if (strncmp(home(next_by), "libc.so", 7) != 0 || by(RTLD_DEFAULT, "strlen") != next_by)
		snprintf(wrong, sizeof(wrong), "the next strlen is in %s", home(next_by));
	(void)dlerror();
	if (by(libc, "no_function_has_this_name") || !dlerror())
		snprintf(wrong, sizeof(wrong), "dlerror() does not tell what failed");
}

#ifdef __GLIBC__
static int count_of(void *opened)
{
	int (*count)(void);

	*(void **)&count = opened ? dlsym(opened, "count") : NULL;
	return count ? count() : -1;
}

static void open_plugin(const char *name)
{
	char path[512];
	Lmid_t space = LM_ID_BASE;
	void *twin;

	snprintf(path, sizeof(path), "%s/%s.so", directory, name);
	handle = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(wrong, sizeof(wrong), "%.400s", dlerror());
		return;
	}
	*(void **)&plugin = dlsym(handle, "take");
	if (dlinfo(handle, RTLD_DI_LMID, &space) || space == LM_ID_BASE)
		snprintf(wrong, sizeof(wrong), "the plugin has no namespace of its own");
	twin = dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL);
	/* There may be no room for a second driver's thread-local variables. */
	if (twin && (count_of(handle) != 1 || count_of(twin) != 1 || count_of(handle) != 2))
		snprintf(wrong, sizeof(wrong), "two namespaces share the plugin's variables");
	if (twin)
		dlclose(twin);
	if (dlsym(handle, "no_function_has_this_name") || !dlerror())
		snprintf(wrong, sizeof(wrong), "dlerror() does not tell what failed");
}
#endif

static bool prepare(const char *way)
{
	char path[512];

	if (strcmp(way, "by-path") == 0 || strcmp(way, "copy") == 0) {
		find_driver(path);
		if (strcmp(way, "copy") == 0)
			copy_driver(path);
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	} else if (strcmp(way, "libc-dlsym") == 0 || strcmp(way, "libc-dlvsym") == 0) {
		take_dlsym(way[6] == 'v');
	} else if (strcmp(way, "next-dlsym") == 0) {
		snprintf(path, sizeof(path), "%.400s/plugin-next.so", directory);
		handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		*(void **)&plugin = handle ? dlsym(handle, "take") : NULL;
#ifdef __GLIBC__
	} else if (strcmp(way, "dlmopen") == 0) {
		handle = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	} else if (strncmp(way, "plugin-", 7) == 0) {
		open_plugin(way);
#endif
	} else {
		return false;
	}
	if (!handle && !wrong[0])
		snprintf(wrong, sizeof(wrong), "%.400s", dlerror());
	return true;
}

static void judge(const struct taken *common, const struct taken *own, unsigned long long quota,
                  unsigned long long contexts)
{
	unsigned long long granted = common->bytes + own->bytes;

	if (own->wrong[0] || common->wrong[0])
		snprintf(wrong, sizeof(wrong), "%s%s", own->wrong, common->wrong);
	else if (granted > quota)
		snprintf(wrong, sizeof(wrong), "more than the quota");
	else if (granted + contexts * CONTEXT + 2 * PIECE < quota)
		snprintf(wrong, sizeof(wrong), "less than fits the quota");
	else if (own->refusal != CUDA_ERROR_OUT_OF_MEMORY)
		snprintf(wrong, sizeof(wrong), "not refused but ended by error %d", own->refusal);
	else if (own->total != quota)
		snprintf(wrong, sizeof(wrong), "it is shown %llu MiB in all", own->total >> 20);
}

int main(int count, char **argument)
{
	struct taken common = {0}, own = {0};
	unsigned long long quota;
	bool alone, before;

	if (count != 5)
		return 64;
	alone = strcmp(argument[2], "alone") == 0;
	before = strcmp(argument[2], "before") == 0;
	quota = strtoull(argument[3], NULL, 10);
	directory = argument[4];
	if (!alone && !before)
		take_pieces(from_common, quota / 2, &common);
	if (!prepare(argument[1]))
		return 64;
	if (before)
		take_pieces(from_common, quota / 2, &common);
	/* Not the whole card: another program may need it. */
	if (!wrong[0] && plugin)
		plugin(directory, quota + 8 * PIECE, &own);
	else if (!wrong[0])
		take_pieces(from_handle, quota + 8 * PIECE, &own);
	if (!wrong[0])
		judge(&common, &own, quota, alone ? 1 : 2);
	printf("%s %s %s: %llu MiB granted%s%s\n", wrong[0] ? "FAIL" : "PASS", argument[1],
	       argument[2], (common.bytes + own.bytes) >> 20, wrong[0] ? ": " : "", wrong);
	fflush(stdout);
	/* Two drivers in one process may conflict at exit. */
	_exit(wrong[0] != '\0');
}
