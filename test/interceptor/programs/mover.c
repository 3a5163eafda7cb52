/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover CASE: the child is a process of an elastic slice that moves its memory itself, and the
 * parent requests the moves. Linked with standin.c, mover_own.c, mover_given.c and the simulated
 * driver. Prints what is wrong, and exits 0 if nothing is. Without the interceptor: `mover used`
 * prints how many bytes of the card are in use, `mover fill BYTES` allocates as many and keeps
 * them.
 */
#define _GNU_SOURCE
#include "mover.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define QUOTA (448ull << 20)
#define PIECES 5
#define WRITTEN                                                                                    \
	(109 * MIB) /* of that; what only has zeros takes no page of the simulated driver          \
	             */
#define SMALL 10

static const char *self;
static const struct memory *memory;
bool emulated;
CUcontext context;
pid_t child;

/* --- in the parent ---------------------------------------------------------------------------- */

static struct ledger_move *move_of(void)
{
	return &ledger->lane[1].move;
}

enum ledger_place place(void)
{
	return __atomic_load_n(&move_of()->is, __ATOMIC_SEQ_CST);
}

static void want(enum ledger_place place)
{
	uint8_t now = __atomic_load_n(&move_of()->want, __ATOMIC_SEQ_CST);

	__atomic_store_n(&move_of()->want, ledger_want(now, place), __ATOMIC_SEQ_CST);
	syscall(SYS_futex, move_of(), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool answered(void)
{
	return __atomic_load_n(&move_of()->answered, __ATOMIC_SEQ_CST) ==
	       __atomic_load_n(&move_of()->want, __ATOMIC_SEQ_CST);
}

enum ledger_move_failure move_to(enum ledger_place place)
{
	want(place);
	WAIT_UNTIL(answered());
	return __atomic_load_n(&move_of()->failure, __ATOMIC_SEQ_CST);
}

void await_step(int step)
{
	WAIT_UNTIL(get(&control->ready) == step);
}

void open_for(int step)
{
	set_away(0);
	set(&control->over, step);
}

void open_until_the_end(void)
{
	open_for(1);
	await_step(2);
	set(&control->over, 2);
}

void set_stay(uint64_t bytes)
{
	__atomic_store_n(&ledger->device[0].stay, bytes, __ATOMIC_SEQ_CST);
}

static void set_keep(uint64_t bytes)
{
	__atomic_store_n(&ledger->device[0].keep, bytes, __ATOMIC_SEQ_CST);
}

/* Shut the gate, and wait until no call is inside. */
void shut(void)
{
	set_away(1);
	WAIT_UNTIL(under_way() == 0);
}

static FILE *natively(const char *what, const char *bytes, pid_t *pid)
{
	int ends[2];

	if (pipe(ends) != 0)
		exit(1);
	*pid = fork();
	if (*pid == 0) {
		unsetenv("LD_PRELOAD");
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		execl(self, self, what, bytes, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	EXPECT(*pid > 0);
	return fdopen(ends[0], "r");
}

long long used(void)
{
	char line[32] = "";
	pid_t pid;
	FILE *out = natively("used", NULL, &pid);

	EXPECT(out && fgets(line, sizeof(line), out) && line[0]);
	if (out)
		fclose(out);
	EXPECT(waitpid(pid, NULL, 0) == pid);
	return strtoll(line, NULL, 10);
}

static long long resident(pid_t pid)
{
	char path[40], line[128] = "";
	long long pages;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	in = fopen(path, "r");
	EXPECT(in && fgets(line, sizeof(line), in));
	if (in)
		fclose(in);
	pages = strchr(line, ' ') ? strtoll(strchr(line, ' '), NULL, 10) : 0;
	return pages * sysconf(_SC_PAGESIZE);
}

static int print_used(void)
{
	nvmlMemory_t memory = {0};
	nvmlDevice_t device = NULL;

	if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) ||
	    nvmlDeviceGetMemoryInfo(device, &memory))
		return 1;
	printf("%llu\n", memory.used);
	return 0;
}

static int fill(size_t bytes)
{
	CUdeviceptr pointer;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    cuMemAlloc_v2(&pointer, bytes))
		return 1;
	printf("filled\n");
	fflush(stdout);
	pause();
	return 0;
}

/* --- in the process --------------------------------------------------------------------------- */

void attach(void)
{
	size_t available, total;
	CUuuid uuid;

	EXPECT(cuInit(0) == CUDA_SUCCESS && cuDeviceGetUuid_v2(&uuid, 0) == CUDA_SUCCESS);
	memcpy(ledger->device[0].uuid, uuid.bytes, 16);
	EXPECT(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
	EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	EXPECT(cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS && total == QUOTA);
}

static const size_t sizes[PIECES] = {2 * MIB, 3 * MIB, 20 * MIB, 64 * MIB, 20 * MIB + 1};

/* Bytes that tell where they belong. */
static uint64_t mark(size_t piece, size_t at)
{
	return (piece + 1) * 0x9e3779b97f4a7c15ull ^ at;
}

void write_marks(size_t piece, CUdeviceptr pointer, size_t bytes)
{
	uint64_t *host = malloc(bytes);

	for (size_t i = 0; i < bytes / 8; i++)
		host[i] = mark(piece, i);
	for (size_t at = 0, part; at < bytes; at += part) {
		part = bytes - at < 8 * MIB ? bytes - at : 8 * MIB;
		EXPECT(cuMemcpyHtoD_v2(pointer + at, (char *)host + at, part) == CUDA_SUCCESS);
	}
	free(host);
}

bool has_marks(size_t piece, CUdeviceptr pointer, size_t bytes)
{
	uint64_t *host = calloc(1, bytes);
	bool all = true;

	for (size_t at = 0, part; at < bytes; at += part) {
		part = bytes - at < 8 * MIB ? bytes - at : 8 * MIB;
		EXPECT(cuMemcpyDtoH_v2((char *)host + at, pointer + at, part) == CUDA_SUCCESS);
	}
	for (size_t i = 0; i < bytes / 8; i++)
		all = all && host[i] == mark(piece, i);
	free(host);
	return all;
}

static CUdeviceptr pieces[PIECES], small[SMALL];

static void allocate_all(void)
{
	for (size_t i = 0; i < PIECES; i++) {
		EXPECT(cuMemAlloc_v2(&pieces[i], sizes[i]) == CUDA_SUCCESS);
		write_marks(i, pieces[i], sizes[i]);
	}
	for (size_t i = 0; i < SMALL; i++) {
		EXPECT(cuMemAlloc_v2(&small[i], 4096) == CUDA_SUCCESS);
		write_marks(100 + i, small[i], 4096);
	}
}

static void check_all(void)
{
	for (size_t i = 0; i < PIECES; i++)
		EXPECT(has_marks(i, pieces[i], sizes[i]));
	for (size_t i = 0; i < SMALL; i++)
		EXPECT(has_marks(100 + i, small[i], 4096));
}

static void free_all(void)
{
	for (size_t i = 0; i < PIECES; i++) {
		EXPECT(cuMemFree_v2(pieces[i] + 8) != CUDA_SUCCESS);
		EXPECT(cuMemFree_v2(pieces[i]) == CUDA_SUCCESS);
		EXPECT(cuMemFree_v2(pieces[i]) != CUDA_SUCCESS);
	}
	for (size_t i = 0; i < SMALL; i++)
		EXPECT(cuMemFree_v2(small[i]) == CUDA_SUCCESS);
}

uint64_t charged(void)
{
	return __atomic_load_n(&ledger->device[0].word.used, __ATOMIC_SEQ_CST);
}

/* --- the cases -------------------------------------------------------------------------------- */

void stop_at(int step)
{
	set(&control->ready, step);
	WAIT_UNTIL(get(&control->over) == step);
}

void keep_and_check(void)
{
	uint64_t before;

	attach();
	before = charged();
	memory->make();
	EXPECT(charged() - before == memory->bytes);
	stop_at(1);
	memory->check();
	EXPECT(charged() - before == memory->bytes);
	memory->end();
	EXPECT(charged() == before);
	stop_at(2);
}

void fail_with(const char *call)
{
	FILE *file = fopen(getenv("FAKECUDA_VMM_FAULT"), "w");

	EXPECT(file && fputs(call, file) >= 0 && fclose(file) == 0);
}

static void move_there_and_back(void)
{
	long long full, away, kept;

	await_step(1);
	full = used();
	EXPECT(place() == LEDGER_RUNNING);
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DRIVER);
	set_keep(UINT64_MAX); /* as the enforcer has it until memory is short */
	shut();
	for (int i = 0; i < 3; i++) {
		EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && place() == LEDGER_LOCKED);
		EXPECT(used() == full);
		EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
		away = used();
		EXPECT(full - away == (long long)OF_PIECES);
		EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
		EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && place() == LEDGER_LOCKED);
		EXPECT(used() == full);
		fail_with("cuMemcpyDtoHAsync"); /* what has not changed is not copied again */
	}
	fail_with("");
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	kept = resident(child);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_BUSY);
	set_away(0);
	set_keep(OF_PIECES);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE);
	EXPECT(emulated || kept - resident(child) < (long long)(2 * MIB));
	set_keep(0);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE);
	EXPECT(emulated || kept - resident(child) >= (long long)WRITTEN);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && used() == away);
	kept = resident(child);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	EXPECT(emulated || kept - resident(child) >= (long long)WRITTEN);
	EXPECT(used() == full);
	open_for(1);
	await_step(2);
	EXPECT(used() == full - (long long)OF_PIECES - (long long)(2 * MIB));
	set(&control->over, 2);
}

/* `bytes` may stay on the card; `of_pieces` bytes of the pieces did. */
static void part_stays(uint64_t bytes, long long full, uint64_t of_pieces)
{
	long long gone = (long long)(OF_PIECES - of_pieces);

	set_stay(bytes);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(full - used() == gone);
}

/* The oldest of 2, 4, 20, 64 and 22 MiB move, until the rest may stay. */
static void move_a_part(void)
{
	uint64_t others;
	long long full;

	await_step(1);
	full = used();
	others = charged() - OF_PIECES;
	shut();
	for (int i = 0; i < 2; i++) {
		part_stays(others + OF_PIECES, full, OF_PIECES);
		part_stays(others + 90 * MIB, full, 86 * MIB);
		part_stays(others + 100 * MIB, full, 86 * MIB); /* nothing returns for that */
		part_stays(others + 40 * MIB, full, 22 * MIB);
		EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE && place() == LEDGER_LOCKED);
		EXPECT(used() == full);
		part_stays(others + 47 * MIB, full, 22 * MIB);
		part_stays(others / 2, full, 0);
		EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && used() == full);
	}
	open_until_the_end();
}

/* Threads create, use and free pieces, and change a lasting one, while the slice is moved again and
 * again. */
static void *use(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	CUdeviceptr lasting;

	EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&lasting, 2 * MIB) == CUDA_SUCCESS);
	for (size_t round = 0; !get(&control->over); round++) {
		size_t bytes = (1 + (size_t)rand_r(&seed) % 6) * MIB;
		CUdeviceptr pointer;

		EXPECT(cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS);
		write_marks(round, pointer, bytes);
		write_marks(round, lasting, 2 * MIB);
		EXPECT(has_marks(round, pointer, bytes));
		EXPECT(has_marks(round, lasting, 2 * MIB));
		EXPECT(cuMemFree_v2(pointer) == CUDA_SUCCESS);
		set(&control->ready, 1);
	}
	EXPECT(cuMemFree_v2(lasting) == CUDA_SUCCESS);
	return NULL;
}

#define THREADS 4

void use_all(void)
{
	pthread_t threads[THREADS];
	uint64_t before;

	attach();
	set(&control->brings_back, 0);
	before = charged();
	memory->make();
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, memory->use, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	memory->check();
	memory->end();
	EXPECT(charged() == before && under_way() == 0);
}

void move_again_and_again(void)
{
	int aside = 0;

	await_step(1);
	for (int i = 0; i < 60 && !wrong; i++) {
		uint64_t before = made();

		WAIT_UNTIL(made() > before);
		set_away(1);
		set_stay((uint64_t)(i / 4 % 4) * 64 * MIB);
		EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DONE);
		if (i % 3 == 0) {
			/* Another request before the first is done. */
			want(LEDGER_ASIDE);
			usleep((unsigned int)i * 300);
		} else {
			EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
			aside++;
		}
		EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
		set_away(0);
	}
	EXPECT(aside == 40);
	set(&control->over, 1);
}

static void keep_a_pool(void)
{
	CUdeviceptr pool, piece;

	attach();
	EXPECT(cuMemAllocAsync(&pool, 256 * MIB, NULL) == CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&piece, 64 * MIB) == CUDA_SUCCESS);
	stop_at(1);
}

static void move_few(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_FEW && place() == LEDGER_RUNNING);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	/* Unless the pool's memory may stay. */
	set_stay(charged() - 64 * MIB);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	open_for(1);
}

/* Like a program's helpers, which only list the devices. */
static void hold_nothing(void)
{
	attach();
	EXPECT(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	EXPECT(charged() == 0);
	stop_at(1);
}

static void move_nothing(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	open_for(1);
}

/* A program outside the slice fills the card: memory that cannot return stays on the host. */
void move_to_a_full_card(void)
{
	char said[16] = "", bytes[24];
	FILE *filler;
	pid_t pid = -1;

	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
	snprintf(bytes, sizeof(bytes), "%llu", 320 * MIB);
	filler = natively("fill", bytes, &pid);
	EXPECT(filler && fgets(said, sizeof(said), filler) && strcmp(said, "filled\n") == 0);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DEVICE);
	EXPECT(place() == LEDGER_BETWEEN || place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_DEVICE);
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	kill(pid, SIGKILL);
	EXPECT(waitpid(pid, NULL, 0) == pid);
	if (filler)
		fclose(filler);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE && place() == LEDGER_RUNNING);
	open_until_the_end();
}

/* A context's pieces end with it, although the driver would keep them. */
static void end_contexts(void)
{
	CUcontext other;
	CUdeviceptr pointer;
	uint64_t before;

	attach();
	before = charged();
	stop_at(1);
	for (int i = 0; i < 3; i++) {
		EXPECT(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
		for (int j = 0; j < 20; j++)
			EXPECT(cuMemAlloc_v2(&pointer, 8 * MIB) == CUDA_SUCCESS);
		EXPECT(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
		EXPECT(charged() == before);
	}
	stop_at(2);
}

static void see_contexts_end(void)
{
	long long before;

	await_step(1);
	before = used();
	set(&control->over, 1);
	await_step(2);
	EXPECT(used() == before);
	set(&control->over, 2);
}

static void lend(void)
{
	CUipcMemHandle handle;
	CUdeviceptr piece, plain;
	CUcontext of[2] = {NULL};
	void *second = &of[1];
	int number = CU_POINTER_ATTRIBUTE_CONTEXT, on = 1;

	attach();
	EXPECT(cuMemAlloc_v2(&piece, 4 * MIB) == CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&plain, MIB) == CUDA_SUCCESS);
	EXPECT(cuIpcGetMemHandle(&handle, piece + 4096) == CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuIpcGetMemHandle(&handle, plain) == CUDA_SUCCESS);
	for (CUdeviceptr at = piece; at <= piece + 4096; at += 4096) {
		EXPECT(cuPointerGetAttribute(&of[0], number, at) == CUDA_SUCCESS);
		EXPECT(cuPointerGetAttributes(1, &number, &second, at) == CUDA_SUCCESS);
		EXPECT(of[0] == context && of[1] == context);
		EXPECT(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at) ==
		       CUDA_SUCCESS);
	}
}

static void free_at_once(void)
{
	CUdeviceptr pointer;
	uint64_t before = charged();

	EXPECT(cuMemAlloc_v2(&pointer, 8 * MIB) == CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(pointer) == CUDA_SUCCESS && charged() == before);
}

/* A capture must not wait for its context. It also ends with its stream or its context. */
static void record(void)
{
	CUdeviceptr pointer, other;
	CUcontext second;
	CUstream stream;
	CUgraph graph;
	uint64_t before;

	attach();
	before = charged();
	EXPECT(cuMemAlloc_v2(&pointer, 8 * MIB) == CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&other, 8 * MIB) == CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&stream, 1) == CUDA_SUCCESS);
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	stop_at(1);
	EXPECT(cuMemFree_v2(pointer) == CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(pointer) != CUDA_SUCCESS);
	EXPECT(charged() - before == 16 * MIB);
	EXPECT(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	EXPECT(charged() - before == 8 * MIB);
	EXPECT(cuMemFree_v2(other) == CUDA_SUCCESS && charged() == before);
	EXPECT(cuMemAlloc_v2(&pointer, 8 * MIB) == CUDA_SUCCESS);
	stop_at(2);
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	stop_at(3);
	EXPECT(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(pointer) == CUDA_SUCCESS && charged() == before);
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	EXPECT(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	free_at_once();
	EXPECT(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&stream, 1) == CUDA_SUCCESS);
	EXPECT(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	EXPECT(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
	EXPECT(cuCtxSetCurrent(context) == CUDA_SUCCESS);
	free_at_once();
}

static void move_who_records(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_LOCKED) == LEDGER_MOVE_BUSY && place() == LEDGER_RUNNING);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	open_for(1);
	await_step(2);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE && place() == LEDGER_ASIDE);
	EXPECT(move_to(LEDGER_RUNNING) == LEDGER_MOVE_DONE);
	open_for(2);
	/* Freeing host memory does not invalidate a capture. */
	await_step(3);
	EXPECT(move_to(LEDGER_BARE) == LEDGER_MOVE_DONE);
	set(&control->over, 3);
}

void move_and_kill(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
	kill(child, SIGKILL);
}

/* The slice is released while its memory is on the host: the process moves it back by itself. */
void go_on_alone(void)
{
	attach();
	memory->make();
	stop_at(1);
	memory->check();
	memory->end();
}

void release(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
	set_closed(true);
	set(&control->over, 1);
}

static CUdeviceptr left_aside;

static void free_at_exit(void)
{
	EXPECT(cuMemFree_v2(left_aside) == CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(left_aside) == CUDA_ERROR_INVALID_VALUE);
	EXPECT(place() == LEDGER_ASIDE && wishes() == 0);
	fflush(stdout);
	if (wrong)
		_exit(1);
}

static void exit_aside(void)
{
	EXPECT(atexit(free_at_exit) == 0);
	attach();
	EXPECT(cuMemAlloc_v2(&left_aside, OF_PIECES) == CUDA_SUCCESS);
	stop_at(1);
	exit(wrong);
}

static void move_and_let_exit(void)
{
	await_step(1);
	shut();
	EXPECT(move_to(LEDGER_ASIDE) == LEDGER_MOVE_DONE);
	set(&control->over, 1);
	for (int tries = 0; tries < 20000; tries++) {
		siginfo_t info = {0};

		if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid)
			return;
		pause_ms(1);
	}
	EXPECT(!"the process waits for its memory");
	kill(child, SIGKILL);
}

static void fork_and_check(void)
{
	pid_t forked;

	attach();
	allocate_all();
	stop_at(1);
	forked = fork();
	if (forked == 0)
		_exit(0);
	EXPECT(forked > 0 && waitpid(forked, NULL, 0) == forked);
	check_all();
	free_all();
	stop_at(2);
}

static const struct memory pieces_memory = {OF_PIECES + 2 * MIB, allocate_all, check_all, free_all,
                                            use};

static const struct mover_case cases[] = {{"there-and-back", keep_and_check, move_there_and_back},
                                          {"part", keep_and_check, move_a_part},
                                          {"again", use_all, move_again_and_again},
                                          {"few", keep_a_pool, move_few},
                                          {"nothing", hold_nothing, move_nothing},
                                          {"full", keep_and_check, move_to_a_full_card},
                                          {"contexts", end_contexts, see_contexts_end},
                                          {"lend", lend, NULL},
                                          {"records", record, move_who_records},
                                          {"released", go_on_alone, release},
                                          {"killed", keep_and_check, move_and_kill},
                                          {"exit", exit_aside, move_and_let_exit},
                                          {"fork", fork_and_check, move_there_and_back},
                                          {"given", keep_and_check, move_to_what_is_given},
                                          {"given-fork", fork_and_check, move_to_what_is_given},
                                          {0}};

static const struct mover_case *find_case(const struct mover_case *list, const char *name)
{
	while (list->name && strcmp(list->name, name) != 0)
		list++;
	return list->name ? list : NULL;
}

int main(int argc, char **argv)
{
	const struct mover_case *found;
	int status = 0;
	bool killed;

	emulated = getenv("GPUSLICE_ANEW");
	self = argv[0];
	if (argc == 2 && strcmp(argv[1], "used") == 0)
		return print_used();
	if (argc == 3 && strcmp(argv[1], "fill") == 0)
		return fill(strtoull(argv[2], NULL, 10));
	memory = &pieces_memory;
	found = argc < 2 ? NULL : find_case(cases, argv[1]);
	if (!found && argc == 2) {
		memory = &segment_memory;
		found = find_case(own_cases, argv[1]);
	}
	if (!found)
		return 2;
	standin_begin(QUOTA, true);
	set(&control->attach_status, ATTACH_OK);
	set(&control->moves, 1);
	child = standin_process(found->in_process);
	if (found->beside)
		found->beside();
	killed = found->beside == move_and_kill;
	if (waitpid(child, &status, 0) != child)
		return 1;
	if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status) {
		printf("the process ended with status %#x\n", status);
		wrong = 1;
	}
	if (!killed || used() == 0)
		return wrong;
	printf("the killed process has left something on the card\n");
	return 1;
}
