/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookups [PLUGIN]: looks up the loader's functions and cuMemAlloc_v2 through dlsym and dlvsym,
 * with each handle and version: from the program, its constructor, and PLUGIN, built of the same
 * source. Each function that is found must be the interceptor's, and some must be found;
 * otherwise it exits 1. Built with -shared and preloaded, only the constructor runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef WHERE
#define WHERE "the program"
#endif

static int wrong, checked;

static void expect_ours(const char *where, const char *name, const char *handle,
                        const char *version, void *found)
{
	Dl_info info = {0};

	if (!found)
		return;
	checked = 1;
	if (dladdr(found, &info) && strstr(info.dli_fname, "libgpuslice.so"))
		return;
	printf("%s: %s by %s%s%s: found in %s\n", where, name, handle, version ? ", version " : "",
	       version ? version : "", info.dli_fname ? info.dli_fname : "?");
	wrong = 1;
}

static void look(const char *where)
{
	static const char *const names[] = {"dlsym", "dlvsym", "dlopen", "dlmopen",
	                                    "cuMemAlloc_v2"};
	static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.3.4", "GLIBC_2.17",
	                                       "GLIBC_2.34"};
	struct {
		const char *name;
		void *handle;
	} handles[] = {{"RTLD_DEFAULT", RTLD_DEFAULT},
	               {"RTLD_NEXT", RTLD_NEXT},
	               {"the program's handle", dlopen(NULL, RTLD_LAZY)},
	               {"libc's handle", dlopen("libc.so.6", RTLD_LAZY)},
	               {"libdl's handle", dlopen("libdl.so.2", RTLD_LAZY)},
	               {"libcuda's handle", dlopen("libcuda.so.1", RTLD_LAZY)}};

	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
		for (size_t h = 0; h < sizeof(handles) / sizeof(*handles); h++) {
			expect_ours(where, names[n], handles[h].name, NULL,
			            dlsym(handles[h].handle, names[n]));
			for (size_t v = 0; v < sizeof(versions) / sizeof(*versions); v++)
				expect_ours(where, names[n], handles[h].name, versions[v],
				            dlvsym(handles[h].handle, names[n], versions[v]));
		}
	}
}

static __attribute__((constructor)) void begin(void)
{
	look(WHERE "'s constructor");
	if (wrong || !checked)
		exit(1);
}

int lookups(void);
int lookups(void)
{
	look(WHERE);
	return wrong;
}

#ifndef PLUGIN
int main(int argc, char **argv)
{
	int (*plugin)(void) = NULL;

	if (lookups() || argc < 2)
		return wrong;
	*(void **)&plugin = dlsym(dlopen(argv[1], RTLD_NOW), "lookups");
	return plugin ? plugin() : 1;
}
#endif
