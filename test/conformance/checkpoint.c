/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what another process's memory does on the card during one. */
#define _GNU_SOURCE
#include "conformance.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 1024

static pid_t target;
static int to_target[2], from_target[2];
static long long before;

static void send_word(int fd)
{
	if (write(fd, "x", 1) != 1)
		stop("the other process is gone");
}

static void wait_word(int fd)
{
	char word;

	if (read(fd, &word, 1) != 1)
		stop("the other process is gone");
}

/* Allocates, and again at each message. */
__attribute__((noreturn)) static void be_target(void)
{
	CUdeviceptr pointer;

	close(to_target[1]);
	close(from_target[0]);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* also while it is stopped */
	start_with_context();
	MUST(cuMemAlloc_v2(&pointer, 512 * MiB));
	for (;;) {
		send_word(from_target[1]);
		wait_word(to_target[0]);
		MUST(cuMemAlloc_v2(&pointer, 64 * MiB));
	}
}

/* -1: not listed by NVML. */
static long long target_bytes(void)
{
	static nvmlProcessInfo_v2_t list[MANY];
	unsigned int count = MANY;

	if (nvmlDeviceGetComputeRunningProcesses_v3(nvml_device, &count, list) != NVML_SUCCESS)
		stop("nvmlDeviceGetComputeRunningProcesses_v3 failed");
	for (unsigned int i = 0; i < count; i++)
		if (list[i].pid == (unsigned int)target)
			return (long long)list[i].usedGpuMemory;
	return -1;
}

static void say(const char *key, CUresult result)
{
	int state = -1;

	MUST(cuCheckpointProcessGetState(target, &state));
	printf("%s: %s, state %d, target %lld, held %lld\n", key, name_of(result), state,
	       target_bytes(), held() - before);
}

static void say_went_on(const char *key)
{
	struct pollfd answer = {.fd = from_target[0], .events = POLLIN};

	printf("%s: went on %d\n", key, poll(&answer, 1, 300) == 1);
}

static CUresult lock_within(unsigned milliseconds)
{
	CUcheckpointLockArgs arguments = {.timeoutMs = milliseconds};

	return cuCheckpointProcessLock(target, &arguments);
}

static CUresult lock(void)
{
	return lock_within(5000);
}

/* A process that makes one call, which may not return. */
struct asker {
	pid_t pid;
	int to[2], from[2];
};

static CUresult ask_state(void)
{
	int state;

	return cuCheckpointProcessGetState(target, &state);
}

static CUresult ask_lock(void)
{
	return lock_within(500);
}

static void make_asker(struct asker *asker, CUresult (*call)(void))
{
	CUresult result;

	if (pipe(asker->to) == -1 || pipe(asker->from) == -1)
		stop("no pipes");
	asker->pid = fork();
	if (asker->pid == -1)
		stop("no process");
	if (asker->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	wait_word(asker->to[0]);
	start();
	result = call();
	if (write(asker->from[1], &result, sizeof(result)) != sizeof(result))
		stop("the other process is gone");
	_exit(0);
}

static bool say_answer(const char *key, struct asker *asker)
{
	struct pollfd answer = {.fd = asker->from[0], .events = POLLIN};
	CUresult result;

	if (poll(&answer, 1, 5000) != 1 ||
	    read(asker->from[0], &result, sizeof(result)) != sizeof(result)) {
		printf("%s: no answer\n", key);
		return false;
	}
	say_result(key, result);
	return true;
}

static void stopped(struct asker *state, struct asker *locker)
{
	bool told, locked;

	kill(target, SIGSTOP);
	waitpid(target, NULL, WUNTRACED);
	send_word(state->to[1]);
	told = say_answer("stopped.state", state);
	send_word(locker->to[1]);
	locked = say_answer("stopped.lock", locker);
	kill(target, SIGCONT);
	if (!told)
		say_answer("continued.state", state);
	if (!locked)
		say_answer("continued.lock", locker);
	say("continued.unlock", cuCheckpointProcessUnlock(target, NULL));
	kill(state->pid, SIGKILL);
	kill(locker->pid, SIGKILL);
}

/* During the checkpoint another program allocates the memory that the return needs. */
static void no_room(void)
{
	CUcontext context;
	CUdeviceptr pointer;
	size_t available, total;

	MUST(cuDevicePrimaryCtxRetain(&context, 0));
	MUST(cuCtxSetCurrent(context));
	MUST(lock());
	MUST(cuCheckpointProcessCheckpoint(target, NULL));
	MUST(cuMemGetInfo_v2(&available, &total));
	MUST(cuMemAlloc_v2(&pointer, (available - 512 * MiB) / MiB / 2 * 2 * MiB));
	say_result("full.restore", cuCheckpointProcessRestore(target, NULL));
	printf("full.target: %lld\n", target_bytes());
	MUST(cuMemFree_v2(pointer));
}

int main(void)
{
	struct asker state, locker;
	int thread;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pipe(to_target) == -1 || pipe(from_target) == -1)
		stop("no pipes");
	target = fork();
	if (target == -1)
		stop("no process");
	if (!target)
		be_target();
	close(to_target[0]);
	close(from_target[1]);
	make_asker(&state, ask_state);
	make_asker(&locker, ask_lock);
	wait_word(from_target[0]);
	start();
	before = held();
	say("running", CUDA_SUCCESS);
	say_result("thread", cuCheckpointProcessGetRestoreThreadId(target, &thread));
	say("running.checkpoint", cuCheckpointProcessCheckpoint(target, NULL));
	say("running.restore", cuCheckpointProcessRestore(target, NULL));
	say("running.unlock", cuCheckpointProcessUnlock(target, NULL));
	say("lock", lock());
	say("lock.again", lock());
	send_word(to_target[1]);
	say_went_on("lock.alloc");
	say("checkpoint", cuCheckpointProcessCheckpoint(target, NULL));
	say("checkpoint.unlock", cuCheckpointProcessUnlock(target, NULL));
	say("restore", cuCheckpointProcessRestore(target, NULL));
	say_went_on("restore.alloc");
	/* It continues at once, so no figures. */
	say_result("unlock", cuCheckpointProcessUnlock(target, NULL));
	wait_word(from_target[0]);
	say("goes_on", CUDA_SUCCESS);
	stopped(&state, &locker);
	no_room();
	kill(target, SIGKILL);
	waitpid(target, NULL, 0);
	return 0;
}
