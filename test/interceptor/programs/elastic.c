/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elastic CASE [LIBRARY]: the child is a process of an elastic slice, and the parent answers like
 * the enforcer. Linked with tinydriver.c and standin.c; the library is late.c. Prints what is
 * wrong, and exits 0 if nothing is.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "standin.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern int driver_entered, *driver_forbidden;
CUresult cuEventQuery(void (*)(void));
CUresult cuTexRefSetMipmapLevelClamp(void *, float, float);

typedef CUresult arguments_function(long, long, long, long, long, long, double, double, double,
                                    double, double, double, double, double, long, long, long, long,
                                    long, long, long, long, long, long, long, long);

static const char *late_library;

/* Replaces the C library's. */
static bool kernel_is_old;

int madvise(void *address, size_t bytes, int advice)
{
	if (advice == 18 /* MADV_WIPEONFORK */ && kernel_is_old) {
		errno = EINVAL;
		return -1;
	}
	return (int)syscall(SYS_madvise, address, bytes, advice);
}

/* --- calls, by all routes --------------------------------------------------------------------- */

static void *cuda;

static void *by_name(const char *name)
{
	void *found = NULL;

	EXPECT(cuGetProcAddress_v2(name, &found, 13000, 0, NULL) == CUDA_SUCCESS);
	return found;
}

static CUresult launch(void)
{
	return cuLaunchKernel((CUfunction)11, 1, 2, 3, 4, 5, 6, 7, (CUstream)8, (void **)9,
	                      (void **)10);
}

static CUresult many_arguments(void)
{
	arguments_function *function;

	*(void **)&function = dlsym(cuda, "cuTestArguments");
	return function(1, -2, 3, -4, 5, -6, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 7, -8, 9, -10,
	                11, -12, 13, -14, 15, -16, 17, -18);
}

static CUresult clamp(void)
{
	return cuTexRefSetMipmapLevelClamp((void *)3, 1.5f, -2.25f);
}

static CUresult clamp_by_name(void)
{
	CUresult (*function)(void *, float, float);

	*(void **)&function = by_name("cuTexRefSetMipmapLevelClamp");
	return function((void *)3, 1.5f, -2.25f);
}

static CUresult query_by_dlsym(void)
{
	CUresult (*function)(CUstream);

	*(void **)&function = dlsym(RTLD_DEFAULT, "cuStreamQuery");
	return function((CUstream)16);
}

static CUresult synchronize_by_name(void)
{
	CUresult (*function)(void *);

	*(void **)&function = by_name("cuEventSynchronize");
	return function((void *)17);
}

typedef CUresult call_function(void);

static call_function *const routes[] = {launch,          many_arguments, clamp,
                                        clamp_by_name,   query_by_dlsym, synchronize_by_name,
                                        cuCtxSynchronize};

#define ROUTES (sizeof(routes) / sizeof(*routes))

static void attach(void)
{
	size_t available, total;

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	EXPECT(cuda && cuInit(0) == CUDA_SUCCESS);
	EXPECT(cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS && total == 1 << 30);
}

/* --- the cases, in the process ---------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS 500

static void *call_all(void *argument)
{
	for (int i = 0; i < ROUNDS; i++) {
		for (size_t route = 0; route < ROUTES; route++)
			EXPECT(routes[route]() == CUDA_SUCCESS);
	}
	return argument;
}

static const char *home(void *function)
{
	Dl_info info;

	if (!function || !dladdr(function, &info) || !info.dli_fname)
		return "nowhere";
	return strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
}

static bool is_at(void *function, const char *where)
{
	return strncmp(home(function), where, strlen(where)) == 0;
}

static void all_routes(void)
{
	static const char gate[] = "libgpuslice", driver[] = "libcuda";
	pthread_t threads[THREADS];
	uint64_t before;
	void *late;
	call_function *call;

	attach();
	EXPECT(is_at(dlsym(cuda, "cuInit"), gate));
	EXPECT(dlsym(cuda, "cuInit") == dlsym(RTLD_DEFAULT, "cuInit"));
	EXPECT(dlsym(cuda, "cuStreamQuery") == by_name("cuStreamQuery"));
	EXPECT(dlsym(cuda, "cuEventSynchronize") == by_name("cuEventSynchronize"));
	EXPECT(is_at(dlsym(cuda, "cuDriverGetVersion"), driver));
	EXPECT(is_at(dlsym(cuda, "cuGetErrorName"), driver));
	EXPECT(dlsym(cuda, "cuTestData") && *(int *)dlsym(cuda, "cuTestData") == 5);
	EXPECT(made() > 0 && under_way() == 0);

	before = made();
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, call_all, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	EXPECT(get(&driver_entered) == THREADS * ROUNDS * (int)ROUTES);
	EXPECT(made() - before == ROUTES * THREADS * ROUNDS);
	EXPECT(under_way() == 0);

	/* Opened only now. */
	late = dlopen(late_library, RTLD_LAZY | RTLD_LOCAL);
	*(void **)&call = late ? dlsym(late, "call") : NULL;
	before = made();
	EXPECT(call && call() == CUDA_SUCCESS && made() - before == 1);
	EXPECT(wishes() == 0);
}

static void *call_one(void *argument)
{
	CUresult result;

	errno = 77;
	result = routes[(uintptr_t)argument]();
	EXPECT(errno == 77);
	return (void *)(uintptr_t)result;
}

static int handled;

static void handle(int number)
{
	(void)number;
	__atomic_fetch_add(&handled, 1, __ATOMIC_SEQ_CST);
}

static void begin_all(pthread_t threads[ROUTES])
{
	for (uintptr_t i = 0; i < ROUTES; i++)
		EXPECT(pthread_create(&threads[i], NULL, call_one, (void *)i) == 0);
}

static void end_all(pthread_t threads[ROUTES])
{
	for (size_t i = 0; i < ROUTES; i++) {
		void *result;

		pthread_join(threads[i], &result);
		if (result)
			printf("route %zu: error %d\n", i, (int)(uintptr_t)result);
		wrong |= result != NULL;
	}
	EXPECT(under_way() == 0);
}

/* Reads standard error, which is a pipe, until it has the text. */
static bool says(int from, const char *text)
{
	struct pollfd readable = {.fd = from, .events = POLLIN};
	char lines[4096] = "";
	size_t length = 0;

	while (!strstr(lines, text)) {
		ssize_t n = poll(&readable, 1, 60000) == 1
		                ? read(from, lines + length, sizeof(lines) - 1 - length)
		                : 0;

		if (n <= 0)
			return false;
		length += (size_t)n;
	}
	return true;
}

static void wait_away(void)
{
	struct sigaction action = {.sa_handler = handle};
	pthread_t threads[ROUTES];
	int ends[2];

	EXPECT(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
	attach();
	sigaction(SIGUSR1, &action, NULL);
	set_away(1);
	begin_all(threads);
	WAIT_UNTIL(wishes() >= (int)ROUTES);
	EXPECT(get(&driver_entered) == 0);
	for (size_t i = 0; i < ROUTES; i++)
		pthread_kill(threads[i], SIGUSR1);
	WAIT_UNTIL(get(&handled) == (int)ROUTES);
	pause_ms(50);
	EXPECT(get(&driver_entered) == 0);
	EXPECT(says(ends[0], "wait until the card has room"));
	set_away(0);
	end_all(threads);
	EXPECT(get(&driver_entered) == (int)ROUTES);
	EXPECT(says(ends[0], "back on the card after "));

	set(&control->brings_back, 1);
	set_away(1);
	begin_all(threads);
	end_all(threads);
	EXPECT(ledger->away == 0);
}

static void *call_until_over(void *argument)
{
	while (!get(&control->over)) {
		for (size_t route = 0; route < ROUTES; route++)
			EXPECT(routes[route]() == CUDA_SUCCESS);
	}
	return argument;
}

static void moves(void)
{
	pthread_t threads[THREADS];

	attach();
	driver_forbidden = &control->moving;
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, call_until_over, NULL) == 0);
	set(&control->ready, 1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	EXPECT(under_way() == 0);
}

/* Repeat the request, for an enforcer that was restarted (main). */
static void enforcer_restarted(void)
{
	pthread_t threads[ROUTES];

	attach();
	set_away(1);
	begin_all(threads);
	WAIT_UNTIL(wishes() > 0);
	set(&control->ready, 1);
	end_all(threads);
	EXPECT(get(&driver_entered) == (int)ROUTES);
}

static void killed(void)
{
	attach();
	set_away(1);
	set(&control->ready, 1);
	(void)launch();
	printf("it went on\n");
	wrong = 1;
}

static void gone(void)
{
	pthread_t threads[ROUTES];

	attach();
	set_away(1);
	begin_all(threads);
	WAIT_UNTIL(wishes() >= (int)ROUTES);
	set_closed(true);
	end_all(threads);
	EXPECT(launch() == CUDA_SUCCESS && clamp() == CUDA_SUCCESS);
	EXPECT(under_way() == 0 && ledger->away == 1);
}

static void attach_away(void)
{
	set(&control->brings_back, 1);
	attach();
	EXPECT(get(&control->attached) == 1);
}

static void wait_for(pid_t child)
{
	int status;

	EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static pid_t inside;

static void fork_inside(void)
{
	EXPECT(under_way() == 1);
	inside = fork();
	if (inside)
		wait_for(inside);
}

static void forked(void)
{
	uint64_t before;
	pid_t child;

	attach();
	before = made();
	child = fork();
	if (child == 0) {
		size_t available, total;

		/* The child's calls are counted only once it is attached. */
		EXPECT(clamp() == CUDA_SUCCESS && launch() == CUDA_SUCCESS);
		EXPECT(calls_of(2) == 0);
		EXPECT(cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS);
		EXPECT(get(&control->attached) == 2 && clamp() == CUDA_SUCCESS);
		EXPECT(calls_of(2) >> 16 > 1 && (calls_of(2) & UNDER_WAY) == 0);
		_exit(wrong);
	}
	wait_for(child);
	EXPECT(made() == before && under_way() == 0);
	EXPECT(cuEventQuery(fork_inside) == CUDA_SUCCESS);
	if (inside == 0) {
		EXPECT(under_way() == 1);
		_exit(wrong);
	}
	EXPECT(under_way() == 0);
}

static void leave(void)
{
	pthread_exit(NULL);
}

static void be_cancelled(void)
{
	set(&handled, 1);
	for (;;)
		pause();
}

static void *query(void *callback)
{
	return (void *)(uintptr_t)cuEventQuery((void (*)(void))callback);
}

static void *return_address;
static bool in_trace;

static void trace(void)
{
	void *frames[64];
	int count = backtrace(frames, 64);

	for (int i = 0; i < count; i++)
		in_trace |= frames[i] == return_address;
}

static __attribute__((noinline)) CUresult traced(void)
{
	CUresult result;

	return_address = __builtin_return_address(0);
	result = cuEventQuery(trace);
	__asm__ volatile("");
	return result;
}

static void left(void)
{
	pthread_t thread;
	void *result;

	attach();
	EXPECT(pthread_create(&thread, NULL, query, (void *)leave) == 0);
	pthread_join(thread, NULL);
	EXPECT(under_way() == 0);
	EXPECT(pthread_create(&thread, NULL, query, (void *)be_cancelled) == 0);
	WAIT_UNTIL(get(&handled) == 1);
	EXPECT(under_way() == 1);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	EXPECT(result == PTHREAD_CANCELED && under_way() == 0);
	EXPECT(traced() == CUDA_SUCCESS && in_trace);
}

/* The driver's own work at exit comes after the slice's return. */
static void exits(void)
{
	attach();
	set(&control->brings_back, 1);
	set_away(1);
	exit(wrong);
}

/* There are more functions than stubs, so the process is never moved. */
static void used_up(void)
{
	void *function = NULL, *first = NULL;

	attach();
	for (int i = 1; i < 2000; i++) {
		EXPECT(cuGetProcAddress_v2("cuTestNumber", &function, i, 0, NULL) == CUDA_SUCCESS);
		first = first ? first : function;
	}
	EXPECT(is_at(first, "libgpuslice") && is_at(function, "libcuda"));
	EXPECT(under_way() >= 1);
	EXPECT(clamp() == CUDA_SUCCESS && launch() == CUDA_SUCCESS);
	EXPECT(cuGetProcAddress_v2("cuTestNumber", &function, 1, 0, NULL) == CUDA_SUCCESS &&
	       function == first);
}

static void not_elastic(void)
{
	static const char driver[] = "libcuda";

	attach();
	EXPECT(is_at(dlsym(cuda, "cuInit"), driver) && is_at(by_name("cuStreamQuery"), driver));
	EXPECT(is_at(dlsym(RTLD_DEFAULT, "cuTestArguments"), driver));
	EXPECT(is_at((void *)cuTexRefSetMipmapLevelClamp, driver));
	EXPECT(is_at((void *)cuLaunchKernel, "libgpuslice"));
	set_away(1);
	for (size_t i = 0; i < ROUTES; i++)
		EXPECT(routes[i]() == CUDA_SUCCESS);
	EXPECT(calls_of(1) == 0 && wishes() == 0 && get(&control->attached) == 1);
}

/* Where memory cannot be wiped at fork, a child would count in its parent's lane. So the process
 * does not count, and is not moved. */
static void old_kernel(void)
{
	attach();
	EXPECT(is_at(dlsym(cuda, "cuInit"), "libgpuslice"));
	set_away(1);
	for (size_t i = 0; i < ROUTES; i++)
		EXPECT(routes[i]() == CUDA_SUCCESS);
	EXPECT(calls_of(1) == 0 && wishes() == 0 && get(&control->attached) == 1);
}

static const struct {
	const char *name;
	void (*in_process)(void);
	bool plain;
	int attach_status;
} cases[] = {
    {"routes", all_routes, false, 0},
    {"wait", wait_away, false, 0},
    {"restart", enforcer_restarted, false, 0},
    {"killed", killed, false, 0},
    {"exit", exits, false, 0},
    {"moves", moves, false, 0},
    {"gone", gone, false, 0},
    {"attach", attach_away, false, ATTACH_AWAY},
    {"fork", forked, false, 0},
    {"left", left, false, 0},
    {"used-up", used_up, false, 0},
    {"plain", not_elastic, true, 0},
    {"old-kernel", old_kernel, false, 0},
};

static void deal_with(const char *name, pid_t child)
{
	if (strcmp(name, "restart") == 0) {
		int seen;

		WAIT_UNTIL(get(&control->ready));
		seen = wishes();
		WAIT_UNTIL(wishes() > seen);
		EXPECT(ledger->away == 1);
		set(&control->brings_back, 1);
	} else if (strcmp(name, "moves") == 0) {
		WAIT_UNTIL(get(&control->ready));
		for (int i = 0; i < 200 && !wrong; i++) {
			uint64_t before = made();

			WAIT_UNTIL(made() > before);
			set_away(1);
			WAIT_UNTIL(under_way() == 0);
			set(&control->moving, 1);
			for (int yields = 0; yields < 100; yields++)
				sched_yield();
			set(&control->moving, 0);
			set_away(0);
		}
		set(&control->over, 1);
	} else if (strcmp(name, "killed") == 0) {
		WAIT_UNTIL(get(&control->ready) && wishes() > 0);
		EXPECT(under_way() == 0);
		kill(child, SIGKILL);
	}
}

int main(int argc, char **argv)
{
	size_t i = 0;
	int status = 0;
	pid_t child;

	while (i < sizeof(cases) / sizeof(*cases) &&
	       (argc < 2 || strcmp(cases[i].name, argv[1]) != 0))
		i++;
	if (i == sizeof(cases) / sizeof(*cases))
		return 2;
	late_library = argc > 2 ? argv[2] : "late.so";
	kernel_is_old = cases[i].in_process == old_kernel;
	standin_begin(1 << 30, !cases[i].plain);
	control->attach_status = cases[i].attach_status;
	child = standin_process(cases[i].in_process);
	deal_with(cases[i].name, child);
	if (waitpid(child, &status, 0) != child)
		return 1;
	if (cases[i].in_process == exits)
		EXPECT(wishes() > 0 && ledger->away == 0 && under_way() == 1);
	if (cases[i].in_process == killed)
		EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else if (status)
		printf("the process ended with status %#x\n", status);
	return wrong || (status && cases[i].in_process != killed);
}
