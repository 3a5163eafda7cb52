/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers to the interceptor's requests, as its client reads them: any bytes, with any descriptors,
 * and an enforcer that dies at any moment. Nothing may leak, nothing may be read that was not
 * received, and a process that attaches has a lane of a valid ledger.
 *
 * The sockets are real; only the enforcer's end is simulated, and waits return at once.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int fake_socket(int domain, int type, int protocol);
static int fake_connect(int s, const struct sockaddr *address, socklen_t length);
static int fake_access(const char *path, int mode);
static int fake_clock(clockid_t clock, struct timespec *t);
static int fake_sleep(const struct timespec *time, struct timespec *rest);

#define socket fake_socket
#define connect fake_connect
#define access fake_access
#define clock_gettime fake_clock
#define nanosleep fake_sleep
#include "../../interceptor/attach.c"
#include "../../interceptor/attach_client.c"
#undef socket
#undef connect
#include "../../interceptor/ledger.h"

#define ROUNDS 8

static const uint8_t *data;
static size_t size;
static int peer = -1, round_of;
static uint64_t fake_now;

static uint8_t take(void)
{
	if (!size)
		return 0;
	size--;
	return *data++;
}

bool say_is_first(struct process *process, enum once once)
{
	process->said |= once;
	return true;
}

void say_line(const char *format, ...)
{
	char line[1024];
	va_list list;

	va_start(list, format);
	vsnprintf(line, sizeof(line), format, list);
	va_end(list);
}

void say_begin(void)
{
}

void gate_begin(struct ledger *ledger, struct ledger_lane *lane)
{
	(void)ledger;
	(void)lane;
}

static int fake_access(const char *path, int mode)
{
	(void)path;
	(void)mode;
	return 0;
}

static int fake_clock(clockid_t clock, struct timespec *t)
{
	(void)clock;
	fake_now += 100000000;
	t->tv_sec = (time_t)(fake_now / 1000000000);
	t->tv_nsec = (long)(fake_now % 1000000000);
	return 0;
}

static int fake_sleep(const struct timespec *time, struct timespec *rest)
{
	(void)rest;
	fake_now += (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
	return 0;
}

static int fake_socket(int domain, int type, int protocol)
{
	int pair[2];

	if (socketpair(domain, type, protocol, pair) != 0)
		return -1;
	if (peer >= 0)
		close(peer);
	peer = pair[1];
	return pair[0];
}

/* A ledger, empty or invalid, or a file that cannot be mapped. All have at least a ledger's size:
 * no enforcer sends a shorter file, which would crash a process that maps it. */
static int descriptor(uint8_t kind)
{
	static const uint8_t name[16] = {7};
	struct ledger *ledger;
	int fd;

	if (kind % 4 == 0)
		return open("/dev/null", O_RDONLY | O_CLOEXEC);
	fd = memfd_create("fuzz", MFD_CLOEXEC);
	must(fd >= 0 && ftruncate(fd, sizeof(*ledger)) == 0, "there is a memfd");
	if (kind % 4 == 1)
		return fd;
	ledger = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(ledger != MAP_FAILED, "it can be mapped");
	ledger_format(ledger, name);
	if (kind % 4 == 2)
		ledger->layout += kind;
	ledger->device_count = kind; /* also too many */
	munmap(ledger, sizeof(*ledger));
	return fd;
}

/* Connect to a socket with the answer already in it. */
static int fake_connect(int s, const struct sockaddr *address, socklen_t length)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control = {.bytes = {0}};
	struct attach_reply reply = {.magic = ATTACH_MAGIC, .version = ATTACH_VERSION};
	uint8_t bytes[sizeof(reply) + 16] = {0}, how = take(), count = take() % 5;
	struct iovec io = {.iov_base = bytes, .iov_len = sizeof(reply)};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
	int fd[4];

	(void)s;
	must(length == sizeof(struct sockaddr_un) && address->sa_family == AF_UNIX, "an address");
	if (++round_of > ROUNDS || how % 16 == 0) {
		errno = ECONNREFUSED;
		return -1;
	}
	reply.lane = take();
	reply.size = sizeof(struct ledger);
	reply.status = how & 64 ? take() : 0;
	memcpy(bytes, &reply, sizeof(reply));
	if (how & 32) {
		for (uint8_t changes = take() % 8; changes > 0; changes--) {
			size_t place = take() % sizeof(reply);

			bytes[place] = take();
		}
	}
	if (how % 8 == 1)
		io.iov_len = take() % sizeof(bytes);
	if (count > 0) {
		struct cmsghdr *header;

		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(count * sizeof(int));
		for (uint8_t i = 0; i < count; i++)
			fd[i] = descriptor(take());
		memcpy(CMSG_DATA(header), fd, count * sizeof(int));
	}
	if (how % 8 != 2) /* it closes without an answer */
		(void)sendmsg(peer, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	for (uint8_t i = 0; i < count; i++)
		close(fd[i]);
	if (how % 8 < 4) { /* it is dead when its answer is read */
		if (how % 8 == 3)
			shutdown(peer, SHUT_WR);
		close(peer);
		peer = -1;
	}
	return 0;
}

/* The lowest free descriptor, which a leak would change. */
static int lowest(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t length)
{
	static struct process process;
	static const uint8_t uuid[16] = {1, 2, 3};
	int before = lowest();

	memset(&process, 0, sizeof(process));
	data = input;
	size = length;
	round_of = 0;
	fake_now = 1000000000;
	for (int i = 0; i < 3 && !process.attached; i++) {
		attach_process(&process);
		fake_now += 2 * RETRY_AFTER;
	}
	must(process.attached || process.said, "a refused process reports why");
	if (process.attached) {
		must(ledger_valid(process.ledger, sizeof(struct ledger)), "the ledger is one");
		must(process.lane > 0 && process.lane < LEDGER_LANES, "the lane is one");
		for (int i = 0; i < 3; i++) {
			int device = attach_device(&process, uuid, 1 << 30, i);

			must(device >= -1 && device < (int)LEDGER_DEVICES, "the device is one");
		}
		munmap(process.ledger, sizeof(struct ledger));
		for (uint32_t i = 0; i < process.pool_count; i++) {
			const struct common *pool = &process.pools[i];

			must(ledger_valid(pool->ledger, sizeof(struct ledger)) && pool->lane > 0 &&
			         pool->lane < LEDGER_LANES,
			     "so is a pool's");
			munmap(pool->ledger, sizeof(struct ledger));
		}
	}
	if (peer >= 0)
		close(peer);
	peer = -1;
	must(lowest() == before, "no descriptor is left open");
	return 0;
}
