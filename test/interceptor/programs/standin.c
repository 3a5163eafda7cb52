/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

struct ledger *ledger;
struct control *control;
int listening = -1, wrong, host_file = -1;

static int ledger_file;
static char directory[80];

static void path_of(char path[108], const char *name)
{
	snprintf(path, 108, "%s/%s", directory, name);
}

void standin_listen(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	path_of(address.sun_path, ATTACH_SOCKET_NAME);
	unlink(address.sun_path);
	if (s < 0 || bind(s, (struct sockaddr *)&address, sizeof(address)) || listen(s, 64)) {
		perror(address.sun_path);
		exit(1);
	}
	set(&listening, s);
}

/* Allocates the given part of a memfd, as the holder does. */
static uint16_t give_host(const struct attach_request *request, int *file)
{
	__atomic_fetch_add(&control->host_asked, 1, __ATOMIC_SEQ_CST);
	if (get(&control->host_steps) == 0)
		return ATTACH_OWN;
	if (host_file < 0) {
		host_file = (int)syscall(SYS_memfd_create, "given", 0);
		if (host_file < 0 || ftruncate(host_file, 1 << 30) != 0)
			return ATTACH_INTERNAL;
	}
	if (request->bytes > (uint64_t)get(&control->host_steps) * ATTACH_HOST_STEP ||
	    request->used >= request->bytes || request->used % ATTACH_HOST_STEP ||
	    request->bytes % ATTACH_HOST_STEP ||
	    fallocate(host_file, 0, (off_t)request->used,
	              (off_t)(request->bytes - request->used)) != 0)
		return ATTACH_REFUSED;
	*file = host_file;
	return ATTACH_OK;
}

static void bring_back(void)
{
	if (get(&control->brings_back)) {
		set(&control->attach_status, ATTACH_OK);
		set_away(0);
	}
}

static void answer(int c)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} room = {.bytes = {0}};
	struct attach_request request;
	struct attach_reply reply = {.magic = ATTACH_MAGIC, .version = ATTACH_VERSION};
	struct iovec io = {&reply, sizeof(reply)};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
	int file = -1;

	if (recv(c, &request, sizeof(request), 0) != sizeof(request))
		return;
	reply.status = ATTACH_UNKNOWN;
	if (request.op == ATTACH_OP_ATTACH) {
		if (get(&control->attach_status) == ATTACH_AWAY)
			bring_back();
		reply.status = (uint16_t)get(&control->attach_status);
		if (reply.status == ATTACH_OK) {
			reply.lane =
			    (uint32_t)__atomic_add_fetch(&control->attached, 1, __ATOMIC_SEQ_CST);
			reply.size = sizeof(struct ledger);
			ledger->lane[reply.lane].state = LEDGER_LIVE;
			if (get(&control->moves))
				__atomic_store_n(&ledger->lane[reply.lane].move.want,
				                 LEDGER_RUNNING, __ATOMIC_SEQ_CST);
			file = ledger_file;
		}
	} else if (request.op == ATTACH_OP_HOST) {
		if (get(&control->host_steps) < 0)
			return; /* as if killed now */
		reply.status = give_host(&request, &file);
	}
	if (file >= 0) {
		message.msg_control = room.bytes;
		message.msg_controllen = sizeof(room.bytes);
		CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &file, sizeof(int));
	}
	(void)sendmsg(c, &message, MSG_NOSIGNAL);
	/* The process checks that the enforcer lives. */
	if (reply.lane)
		(void)recv(c, &request, sizeof(request), 0);
}

static void *answer_one(void *argument)
{
	int c = (int)(intptr_t)argument;

	answer(c);
	close(c);
	return NULL;
}

static void *serve(void *argument)
{
	for (;;) {
		int c = accept4(get(&listening), NULL, NULL, SOCK_CLOEXEC);
		pthread_t thread;

		if (c < 0)
			pause_ms(1);
		else if (pthread_create(&thread, NULL, answer_one, (void *)(intptr_t)c) == 0)
			pthread_detach(thread);
	}
	return argument;
}

/* Bring the slice back at a request, if that is enough. */
static void *attend_gate(void *argument)
{
	for (int seen = 0;; pause_ms(1)) {
		if (wishes() != seen)
			bring_back();
		if (ledger->away == 0)
			seen = wishes();
	}
	return argument;
}

pid_t standin_process(void (*in_process)(void))
{
	pid_t child = fork();
	pthread_t thread;

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(120);
		close(listening);
		in_process();
		fflush(stdout);
		_exit(wrong);
	}
	if (child < 0 || pthread_create(&thread, NULL, serve, NULL) != 0 ||
	    pthread_create(&thread, NULL, attend_gate, NULL) != 0)
		exit(1);
	return child;
}

void standin_begin(uint64_t quota, bool elastic)
{
	static const uint8_t name[16] = "elastic";
	struct ledger_account enforcer;

	snprintf(directory, sizeof(directory), "%s", getenv(ATTACH_DIR_ENV));
	ledger_file = (int)syscall(SYS_memfd_create, "ledger", 0);
	if (ledger_file < 0 || ftruncate(ledger_file, sizeof(struct ledger)) != 0)
		exit(1);
	ledger =
	    mmap(NULL, sizeof(struct ledger), PROT_READ | PROT_WRITE, MAP_SHARED, ledger_file, 0);
	control =
	    mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ledger == MAP_FAILED || control == MAP_FAILED)
		exit(1);
	ledger_format(ledger, name);
	enforcer = ledger_open(ledger, 0, 0);
	memset(ledger->device[0].uuid, 7, 16);
	ledger->device[0].quota = ledger->device[0].total = quota;
	ledger->device[0].context_bytes = 1; /* this stand-in cannot tell a context's size */
	ledger_limit(&enforcer, quota);
	ledger->device_count = 1;
	ledger->high_lane = 8;
	if (elastic) {
		char path[108];

		path_of(path, ATTACH_ELASTIC_NAME);
		close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	}
	/* Listen before the file exists: the process waits for it before it connects. */
	standin_listen();
}
