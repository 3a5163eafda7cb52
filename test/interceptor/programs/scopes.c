/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scopes WAY DIRECTORY QUOTA: an object that the loader would not bind to a preloaded library
 * reaches the interceptor, and nothing else changes for it. Not linked with libcuda; run in a slice
 * of QUOTA bytes. DIRECTORY has the libraries of guest.c. WAY:
 *
 *   linked         linked with the driver, bound lazily, in a namespace of its own
 *   now            bound at once
 *   deepbind       opened with RTLD_DEEPBIND, bound lazily
 *   deepbind-now   and at once
 *   later          opened by the first object of a namespace, after a look-up in that
 *   next           looks up its next cuMemAlloc_v2, behind libcuda
 *   keys           thread-specific data of both, when the base has the driver
 *   other          another library of that name
 *   asked          dlmopen from dlsym
 *   nothing        in a namespace without the driver
 *   threads        threads look up while others open and close
 *
 * Prints what is wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ours[] = "libgpuslice.so", driver[] = "libcuda.so";
static const char missing[] = "no_function_has_this_name";
static const char *directory;
static size_t quota;
static int wrong;

static void expect(int truth, const char *what)
{
	if (truth)
		return;
	printf("not so: %s (%s)\n", what, dlerror() ?: "-");
	wrong = 1;
}

static int is_in(void *function, const char *object)
{
	Dl_info info;
	const char *name;

	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return 0;
	name = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
	if (strncmp(name, object, strlen(object)) == 0)
		return 1;
	printf("it is in %s\n", name);
	return 0;
}

static const char *path_of(const char *name)
{
	static _Thread_local char path[512];

	snprintf(path, sizeof(path), "%s/%s.so", directory, name);
	return path;
}

static void *in_namespace(const char *name)
{
	void *handle = dlmopen(LM_ID_NEWLM, path_of(name), RTLD_LAZY | RTLD_LOCAL);

	expect(handle != NULL, "a guest is opened");
	return handle;
}

static int is_loaded(const char *name)
{
	return dlopen(name, RTLD_NOLOAD | RTLD_LAZY) != NULL;
}

#define OF(handle, type, name) ((type)dlsym(handle, name))
#define ASK(handle) OF(handle, void *(*)(void *, const char *), "ask")

static void see_linked(void *handle)
{
	void *(*address)(void) = OF(handle, void *(*)(void), "address");
	size_t (*shown)(void) = OF(handle, size_t(*)(void), "shown");
	size_t (*shown_by_nvml)(void) = OF(handle, size_t(*)(void), "shown_by_nvml");

	expect(address != NULL, "the linked guest has its functions");
	if (!address)
		return;
	expect(is_in(address(), ours), "a function's address is ours");
	expect(shown() == quota, "CUDA shows the quota");
	expect(shown_by_nvml() == quota, "and NVML");
	expect(is_in(ASK(handle)(RTLD_DEFAULT, "cuMemAlloc_v2"), ours), "what is common is ours");
	expect(is_in(ASK(handle)(RTLD_NEXT, "cuMemAlloc_v2"), ours), "what is next is ours");
	expect(is_in(ASK(handle)(handle, "cuMemAlloc_v2"), ours), "what a handle has is ours");
	expect(is_in(dlsym(handle, "cuMemAlloc_v2"), ours), "also asked from outside");
	expect(is_in(ASK(handle)(handle, "cuInit"), driver), "what is not hooked is the driver's");
}

/* Functions unrelated to the driver are unchanged. */
static void see_nothing(void *handle)
{
	void *(*ask)(void *, const char *) = ASK(handle);
	const char *(*failure)(void) = OF(handle, const char *(*)(void), "failure");
	void *own_strlen, *libc;
	const char *said;

	expect(dlsym(handle, missing) == NULL, "what is missing is not found");
	said = dlerror();
	expect(said && strstr(said, missing), "dlerror() tells it");
	expect(ask(handle, missing) == NULL, "nor from inside");
	said = failure();
	expect(said && strstr(said, missing), "whose dlerror() tells it");
	expect(!dlerror(), "and no other does");
	expect(ask(handle, "cuNoSuchFunction") == NULL, "nor a driver's");
	said = failure();
	expect(said && strstr(said, "cuNoSuchFunction"), "whose dlerror() tells that");
	own_strlen = ask(RTLD_DEFAULT, "strlen");
	expect(is_in(own_strlen, "libc.so") && own_strlen != dlsym(RTLD_DEFAULT, "strlen"),
	       "strlen is that of the namespace");
	expect(ask(RTLD_NEXT, "strlen") == own_strlen, "the next one, too");
	libc = OF(handle, void *(*)(const char *), "open_by_own")("libc.so.6");
	expect(ask(libc, "strlen") == own_strlen, "and that of its C library");
	expect(dlsym(libc, "strlen") == own_strlen, "asked from outside, too");
	expect(is_in(ask(libc, "dlsym"), ours), "its dlsym is ours");
	expect(ask(libc, "dlsym") == ask(RTLD_NEXT, "dlsym"), "the next is the same");
	expect(ask(RTLD_DEFAULT, "dlsym") == ask(libc, "dlsym"), "the common one, too");
	expect(dlsym(libc, "dlsym") == ask(libc, "dlsym"), "from outside, too");
	expect(ask(libc, "dlsym") != (void *)dlsym, "but not that of another namespace");
	expect(!is_loaded("libcuda.so.1") && !is_loaded("libnvidia-ml.so.1"),
	       "no driver was loaded");
}

static void see_later(void)
{
	void *plain = in_namespace("plain"), *linked;

	expect(ASK(plain)(RTLD_DEFAULT, "strlen") != NULL, "the guest answers");
	linked = OF(plain, void *(*)(const char *), "open_by_own")(path_of("linked"));
	expect(linked != NULL, "it opens another");
	/* By its own dlsym, and then by the other's. */
	*(void **)&linked = linked;
	expect(((size_t(*)(void))ASK(plain)(linked, "shown"))() == quota, "CUDA shows the quota");
	see_linked(linked);
}

/* Its driver is the process's only one. */
static void see_alone(void *handle)
{
	see_linked(handle);
	expect(!is_loaded("libcuda.so.1") && !is_loaded("libnvidia-ml.so.1"),
	       "no other driver was loaded");
}

/* The base's driver and the guest get different keys from then on. */
static void see_keys(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *linked;
	unsigned int theirs[4];
	pthread_key_t own;

	expect(dlsym(cuda, "cuMemAlloc_v2") != NULL, "the base has a driver");
	linked = in_namespace("linked");
	for (size_t i = 0; i < 4; i++)
		theirs[i] = OF(linked, unsigned int (*)(const void *), "new_key")("theirs");
	for (size_t i = 0; i < 4; i++) {
		expect(!pthread_key_create(&own, NULL), "a key is created");
		expect(!pthread_getspecific(own), "it has no value");
		for (size_t k = 0; k < 4; k++)
			expect(own != theirs[k], "it is no guest's");
	}
	see_linked(linked);
}

static void see_next(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *linked = dlopen(path_of("linked"), RTLD_NOW | RTLD_LOCAL);

	expect(cuda && linked, "both are opened");
	expect(is_in(ASK(linked)(RTLD_NEXT, "cuMemAlloc_v2"), ours), "the next is ours");
	expect(is_in(ASK(linked)(RTLD_NEXT, "cuInit"), driver), "what is not hooked is not");
	expect(ASK(linked)(RTLD_NEXT, missing) == NULL && dlerror(), "what is missing is missing");
}

static void see_other(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	void *other = dlopen(path_of("other"), RTLD_NOW | RTLD_LOCAL);
	void *far = in_namespace("other");
	const char *said;

	expect(cuda && other && far, "all are opened");
	expect(dlsym(other, "cuMemAlloc_v2") == dlsym(cuda, "cuMemAlloc_v2"),
	       "there is one driver");
	expect(dlsym(far, "cuMemAlloc_v2") == dlsym(cuda, "cuMemAlloc_v2"), "in all namespaces");
	(void)dlerror();
	expect(!dlsym(other, "cuOfNobodyElse"), "what it does not have, no other has");
	said = dlerror();
	expect(said && strstr(said, "cuOfNobodyElse"), "dlerror() tells it");
}

static void see_asked(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW), *handle;
	void *(*open)(Lmid_t, const char *, int);

	*(void **)&open =
	    dlsym(libc, "dlmopen") ?: dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlmopen");
	handle = open(LM_ID_NEWLM, path_of("linked"), RTLD_LAZY);
	expect(handle != NULL, "a guest is opened");
	see_alone(handle);
}

static void *churn(void *unused)
{
	for (int i = 0; i < 40; i++) {
		void *handle = dlmopen(LM_ID_NEWLM, path_of("plain"), RTLD_LAZY | RTLD_LOCAL);
		void *ask;

		if (!handle)
			continue;
		ask = dlsym(handle, "ask");
		expect(ask && ((void *(*)(void *, const char *))ask)(handle, "ask") == ask,
		       "a guest finds itself");
		dlclose(handle);
	}
	return unused;
}

static void see_threads(void)
{
	void *handle = in_namespace("plain");
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, churn, NULL);
	for (int i = 0; i < 2000; i++)
		expect(ASK(handle)(RTLD_DEFAULT, "strlen") != NULL, "the guest answers");
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

int main(int count, char **argument)
{
	const char *way = count == 4 ? argument[1] : "";

	directory = argument[2];
	quota = count == 4 ? strtoull(argument[3], NULL, 10) : 0;
	if (strcmp(way, "linked") == 0 || strcmp(way, "now") == 0)
		see_alone(in_namespace(way));
	else if (strncmp(way, "deepbind", 8) == 0)
		see_linked(dlopen(path_of(way[8] ? "now" : "linked"),
		                  RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND));
	else if (strcmp(way, "later") == 0)
		see_later();
	else if (strcmp(way, "keys") == 0)
		see_keys();
	else if (strcmp(way, "next") == 0)
		see_next();
	else if (strcmp(way, "other") == 0)
		see_other();
	else if (strcmp(way, "asked") == 0)
		see_asked();
	else if (strcmp(way, "nothing") == 0)
		see_nothing(in_namespace("plain"));
	else if (strcmp(way, "threads") == 0)
		see_threads();
	else
		return 64;
	fflush(stdout);
	_exit(wrong);
}
