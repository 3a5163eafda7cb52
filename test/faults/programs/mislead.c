/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mislead: gives a program a false time and disk errors, without its notice.
 *
 * 	mislead LIES DIRECTORY -- PROGRAM ARG…
 * 		becomes PROGRAM, in this process. LIES is a file with a struct lies, which applies
 * 		from the next system call on; DIRECTORY is where the disk fails.
 *
 * A seccomp filter sends the few relevant calls to a supervisor, a child that answers them or lets
 * them through, and that exits with the program. Programs usually read the time without a system
 * call, from the kernel's vDSO page, so the supervisor hides that before the program's first
 * instruction. The kernel's own clock is unchanged: a wait until a time of day would not be misled.
 * The enforcer has none.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Written by the suite (misled_test.go) in one write. */
struct lies {
	int64_t ahead;       /* seconds by which the wall clock is ahead */
	int64_t write_error; /* errno of writing, creating, linking and removing files; 0: none */
	int64_t sync_error;  /* errno of syncing */
	int64_t spared;      /* calls that succeed before the first of these errors */
	int64_t turn;        /* a new number restarts that count */
};

static struct {
	pid_t program;
	int listener; /* for the filter's notifications */
	int memory;   /* the program's */
	int lies;
	const char *directory;
	int64_t turn, spared;
} supervisor;

static void must(long result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "mislead: %s: %s\n", what, strerror(errno));
	_exit(125);
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(number, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, yes, no)
#define ANY_OF(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, yes, no)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)

/* Returns the listener of the filter, which compares the lower halves of arguments. */
static int install_filter(void)
{
	struct sock_filter code[] = {
	    LOAD(nr),
	    IF(SYS_clock_gettime, 8, 0),
	    IF(SYS_openat, 5, 0),
	    IF(SYS_pwrite64, 8, 0),
	    IF(SYS_ftruncate, 7, 0),
	    IF(SYS_linkat, 6, 0),
	    IF(SYS_unlinkat, 5, 0),
	    IF(SYS_fdatasync, 4, 5),
	    LOAD(args[2]), /* openat: for writing? */
	    ANY_OF(O_WRONLY | O_RDWR | O_CREAT, 2, 3),
	    LOAD(args[0]), /* clock_gettime: which? */
	    IF(CLOCK_REALTIME, 0, 1),
	    RETURN(SECCOMP_RET_USER_NOTIF),
	    RETURN(SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};

	/* A received call is not restarted for a signal: Go's runtime sends many. */
	return (int)syscall(
	    SYS_seccomp, SECCOMP_SET_MODE_FILTER,
	    SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &filter);
}

static uint64_t peek(uint64_t at)
{
	return (uint64_t)ptrace(PTRACE_PEEKDATA, supervisor.program, at, 0);
}

/* The program is about to start: its stack has the number of arguments, these, the environment, and
 * the auxiliary vector, each ended by 0. */
static void hide_vdso(void)
{
	struct __ptrace_syscall_info info;
	uint64_t at;

	must(ptrace(PTRACE_GET_SYSCALL_INFO, supervisor.program, sizeof(info), &info),
	     "find the program's stack");
	at = info.stack_pointer;
	at += 8 * (1 + peek(at) + 1);
	while (peek(at))
		at += 8;
	for (at += 8; peek(at) != AT_NULL; at += 16) {
		if (peek(at) == AT_SYSINFO_EHDR)
			must(ptrace(PTRACE_POKEDATA, supervisor.program, at, AT_IGNORE),
			     "hide the vDSO");
	}
}

static int is_by_name(const struct seccomp_data *call)
{
	return call->nr == SYS_openat || call->nr == SYS_linkat || call->nr == SYS_unlinkat;
}

/* Returns whether a call is about a file in the directory, by its descriptor or by its path. */
static int is_inside(const struct seccomp_data *call)
{
	size_t length = strlen(supervisor.directory);
	char link[64], path[512] = "";

	if (is_by_name(call)) {
		if (pread(supervisor.memory, path, sizeof(path) - 1, (off_t)call->args[1]) < 0)
			return 0;
	} else {
		snprintf(link, sizeof(link), "/proc/%d/fd/%d", supervisor.program,
		         (int)call->args[0]);
		if (readlink(link, path, sizeof(path) - 1) < 0)
			return 0;
	}
	return strncmp(path, supervisor.directory, length) == 0 && path[length] == '/';
}

static void answer(const struct seccomp_notif *question, struct seccomp_notif_resp *reply)
{
	struct lies lies = {0};
	int64_t error;

	reply->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	if (pread(supervisor.lies, &lies, sizeof(lies), 0) != sizeof(lies))
		return;
	if (question->data.nr == SYS_clock_gettime) {
		struct timespec now;

		clock_gettime(CLOCK_REALTIME, &now);
		now.tv_sec += lies.ahead;
		if (ioctl(supervisor.listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &question->id) == 0 &&
		    pwrite(supervisor.memory, &now, sizeof(now), (off_t)question->data.args[1]) ==
		        sizeof(now))
			reply->flags = 0;
		return;
	}
	error = question->data.nr == SYS_fdatasync ? lies.sync_error : lies.write_error;
	if (error == ENOSPC && is_by_name(&question->data))
		return; /* existing files can be opened and removed: the file system answers */
	if (error == 0 || !is_inside(&question->data))
		return;
	if (supervisor.turn != lies.turn) {
		supervisor.turn = lies.turn;
		supervisor.spared = 0;
	}
	if (supervisor.spared++ < lies.spared)
		return;
	reply->flags = 0;
	reply->error = (int)-error;
}

static void supervise(void)
{
	struct pollfd wait = {.fd = supervisor.listener, .events = POLLIN};

	while (poll(&wait, 1, -1) == 1 && !(wait.revents & POLLHUP)) {
		struct seccomp_notif question = {0};
		struct seccomp_notif_resp reply = {0};

		if (ioctl(supervisor.listener, SECCOMP_IOCTL_NOTIF_RECV, &question) != 0)
			continue; /* the caller is dead */
		reply.id = question.id;
		answer(&question, &reply);
		(void)ioctl(supervisor.listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
	}
}

int main(int argc, char **argv)
{
	int *listener, ready[2], status;
	char path[64], byte = 0;
	pid_t child;

	if (argc < 5 || strcmp(argv[3], "--") != 0) {
		fprintf(stderr, "usage: mislead LIES DIRECTORY -- PROGRAM ARG…\n");
		return 125;
	}
	supervisor.program = getpid();
	supervisor.directory = argv[2];
	supervisor.lies = open(argv[1], O_RDONLY | O_CLOEXEC);
	must(supervisor.lies, argv[1]);
	must(pipe2(ready, O_CLOEXEC), "make a pipe");
	listener = mmap(NULL, sizeof(*listener), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
	                -1, 0);
	must(listener == MAP_FAILED ? -1 : 0, "map memory");
	/* Shares the descriptors, to get the listener, until the program is executed. Sends no
	 * signal at its exit, which the program would not expect. */
	child = (pid_t)syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
	must(child, "clone");
	if (child > 0) {
		must(read(ready[0], &byte, 1) == 1 ? 0 : -1, "wait for the supervisor");
		*listener = install_filter();
		must(*listener, "install the filter");
		execv(argv[4], argv + 4);
		must(-1, argv[4]);
	}
	setsid(); /* a terminal's signals are for the program */
	must(ptrace(PTRACE_SEIZE, supervisor.program, NULL, PTRACE_O_TRACEEXEC), "trace");
	must(write(ready[1], &byte, 1), "begin");
	must(waitpid(supervisor.program, &status, __WALL), "wait for the program");
	if (!WIFSTOPPED(status) || status >> 16 != PTRACE_EVENT_EXEC)
		return 125;
	hide_vdso();
	snprintf(path, sizeof(path), "/proc/%d/mem", supervisor.program);
	supervisor.memory = open(path, O_RDWR | O_CLOEXEC);
	must(supervisor.memory, path);
	supervisor.listener = *listener;
	must(ptrace(PTRACE_DETACH, supervisor.program, NULL, NULL), "let the program begin");
	supervise();
	return 0;
}
