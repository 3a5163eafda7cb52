/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugins of loaders.c, one per macro:
 *
 *   LINKED  linked with libcuda
 *   OPENS   opens libcuda, and looks up each function like the static CUDA runtime
 *   NESTS   opens the linked plugin, from its own directory
 *   NEXT    has dlsym from dlsym(RTLD_NEXT), so from its own C library
 */
#define _GNU_SOURCE
#include "driver.h"
#include "take.h"

#include <dlfcn.h>

#if defined(LINKED)

static void *get(const char *name)
{
	return strcmp(name, "cuInit") == 0                     ? (void *)cuInit
	       : strcmp(name, "cuDevicePrimaryCtxRetain") == 0 ? (void *)cuDevicePrimaryCtxRetain
	       : strcmp(name, "cuCtxSetCurrent") == 0          ? (void *)cuCtxSetCurrent
	       : strcmp(name, "cuMemGetInfo_v2") == 0          ? (void *)cuMemGetInfo_v2
	       : strcmp(name, "cuMemAlloc_v2") == 0            ? (void *)cuMemAlloc_v2
	                                                       : NULL;
}
#elif defined(NEXT)
static void *get(const char *name)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	void *(*next)(void *, const char *);

	*(void **)&next = dlsym(RTLD_NEXT, "dlsym");
	return cuda && next ? next(cuda, name) : NULL;
}
#elif !defined(NESTS) /* OPENS */
static void *get(const char *name)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
	CUresult (*ask)(const char *, void **, int, uint64_t, int *);
	char bare[64];
	int status = 0;

	*(void **)&ask = cuda ? dlsym(cuda, "cuGetProcAddress_v2") : NULL;
	if (!ask || strcmp(name, "cuMemAlloc_v2") == 0)
		return cuda ? dlsym(cuda, name) : NULL;
	snprintf(bare, sizeof(bare), "%s", name);
	if (strstr(bare, "_v2"))
		*strstr(bare, "_v2") = '\0';
	return ask(bare, &found, 12000, 0, &status) == CUDA_SUCCESS ? found : NULL;
}
#endif

/* Functions unrelated to the driver are unchanged in this plugin's namespace. */
static void look_around(struct taken *taken)
{
	static const char missing[] = "no_function_has_this_name";
	void *found = dlsym(RTLD_DEFAULT, "strlen"), *libc = dlopen("libc.so.6", RTLD_NOW);
	const char *said, *home;
	Dl_info info = {0};

	(void)dlerror();
	if (dlsym(RTLD_DEFAULT, missing) || !(said = dlerror()) || !strstr(said, missing))
		snprintf(taken->wrong, sizeof(taken->wrong), "dlerror() does not tell what failed");
	if (!libc || dlsym(libc, missing) || !(said = dlerror()) || !strstr(said, missing))
		snprintf(taken->wrong, sizeof(taken->wrong), "nor of a handle");
	if (!found || !libc || dlsym(libc, "strlen") != found)
		snprintf(taken->wrong, sizeof(taken->wrong), "strlen is not the C library's");
	if (!dladdr(found, &info) || !(home = strrchr(info.dli_fname, '/')) ||
	    strncmp(home + 1, "libc.so", 7) != 0)
		snprintf(taken->wrong, sizeof(taken->wrong), "strlen is in %s", info.dli_fname);
	if (dlsym(RTLD_NEXT, missing) || !dlsym(RTLD_NEXT, "strlen"))
		snprintf(taken->wrong, sizeof(taken->wrong), "what is next is wrong");
}

void take(const char *directory, unsigned long long most, struct taken *taken);

void take(const char *directory, unsigned long long most, struct taken *taken)
{
	look_around(taken);
#ifdef NESTS
	void (*other)(const char *, unsigned long long, struct taken *);
	char path[512];
	void *plugin;

	snprintf(path, sizeof(path), "%s/plugin-linked.so", directory);
	plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	*(void **)&other = plugin ? dlsym(plugin, "take") : NULL;
	if (other)
		other(directory, most, taken);
	else
		snprintf(taken->wrong, sizeof(taken->wrong), "%s", plugin ? "no take" : dlerror());
#else
	(void)directory;
	take_pieces(get, most, taken);
#endif
}

int count(void);

int count(void)
{
	static int calls;

	return ++calls;
}
