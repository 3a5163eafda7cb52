/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of a slice for tests, made of the interceptor's own ledger code: it does what a line on
 *its standard input says and answers with a line.
 *
 *	attach                -> ok LANE | status N
 *	device UUID-HEX BYTES -> ok INDEX | status N
 *	truth INDEX           -> ok BYTES | status N
 *	charge INDEX BYTES    -> ok HELD | refused
 *	release INDEX BYTES   -> ok HELD
 *	context INDEX BYTES   -> ok HELD
 *	refused INDEX BYTES   -> ok USED (as a refusal that the enforcer is told of)
 *	count INDEX COUNT     -> ok COUNT (as so many refusals that it is not told of)
 *	used INDEX            -> ok BYTES
 *	limit INDEX           -> ok BYTES
 *	number INDEX          -> ok NUMBER
 *	hammer INDEX COUNT    -> ok HELD (charges and releases, again and again)
 *	scribble SEED COUNT   -> ok (writes random bytes all over the page)
 *	poke OFFSET VALUE     -> ok (writes 8 bytes)
 *	exec                  -> ok (becomes a new image of itself, that has not attached)
 *
 * Its argument is the slice's directory.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../interceptor/attach.h"
#include "../../interceptor/ledger.c"

static const char *dir;
static struct ledger *ledger;
static uint32_t lane;
static struct ledger_account account[LEDGER_DEVICES];

/* Ask; the descriptor that came with the answer, or -1. *conn stays open. */
static int ask(struct attach_request *request, struct attach_reply *reply, int *conn)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	union {
		char buffer[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {reply, sizeof(*reply)};
	struct msghdr message = {.msg_iov = &iov,
	                         .msg_iovlen = 1,
	                         .msg_control = control.buffer,
	                         .msg_controllen = sizeof(control.buffer)};
	struct cmsghdr *header;
	int fd = -1;

	request->magic = ATTACH_MAGIC;
	request->version = ATTACH_VERSION;
	request->layout = LEDGER_LAYOUT;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/" ATTACH_SOCKET_NAME, dir);
	*conn = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(*conn, (struct sockaddr *)&address, sizeof(address)) ||
	    send(*conn, request, sizeof(*request), MSG_NOSIGNAL) != sizeof(*request) ||
	    recvmsg(*conn, &message, MSG_CMSG_CLOEXEC) != sizeof(*reply)) {
		close(*conn);
		*conn = -1;
		reply->status = 100;
		return -1;
	}
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	return fd;
}

/* Did the enforcer live until now? Then it knows, or will find, what we have mapped. */
static bool connected(int conn)
{
	struct pollfd p = {.fd = conn, .events = POLLRDHUP};

	return poll(&p, 1, 0) == 0;
}

static unsigned do_attach(void)
{
	struct attach_request request = {.op = ATTACH_OP_ATTACH};
	struct attach_reply reply;
	int conn, fd = ask(&request, &reply, &conn);
	struct ledger *page;
	bool known;

	if (fd < 0)
		return reply.status ? reply.status : 101;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	known = connected(conn);
	close(conn);
	if (page == MAP_FAILED || !ledger_valid(page, reply.size))
		return 102;
	if (!known) {
		munmap(page, sizeof(*page));
		return 100;
	}
	ledger = page;
	lane = reply.lane;
	for (unsigned i = 0; i < LEDGER_DEVICES; i++)
		account[i] = ledger_open(ledger, i, lane);
	return 0;
}

static void unhex(const char *text, uint8_t *bytes)
{
	for (unsigned i = 0; i < 16; i++)
		sscanf(text + 2 * i, "%2hhx", &bytes[i]);
}

static void scribble(uint64_t seed, uint64_t count)
{
	while (count--) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		/* The headers and the first lanes: where it hurts. */
		((volatile uint64_t *)ledger)[(seed >> 8) % (4 * 4096 / 8)] =
		    seed * 0x9e3779b97f4a7c15u;
	}
}

static void say(enum ledger_result result, const uint64_t *value)
{
	if (result == LEDGER_OK)
		printf("ok %" PRIu64 "\n", *value);
	else
		puts(result == LEDGER_REFUSED ? "refused" : "damaged");
}

int main(int argc, char **argv)
{
	char line[256], word[16], hex[64];
	uint64_t a, b;

	dir = argv[argc - 1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0); /* what is not read yet is for the image after "exec" */
	while (fgets(line, sizeof(line), stdin)) {
		struct attach_request request = {0};
		struct attach_reply reply = {0};
		int n = sscanf(line, "%15s %" SCNu64 " %" SCNu64, word, &a, &b), conn;
		bool on = ledger && n >= 2 && a < LEDGER_DEVICES;

		if (!strcmp(word, "attach")) {
			unsigned status = do_attach();

			printf(status ? "status %u\n" : "ok %u\n", status ? status : lane);
		} else if (sscanf(line, "device %63s %" SCNu64, hex, &request.bytes) == 2) {
			request.op = ATTACH_OP_DEVICE;
			unhex(hex, request.uuid);
			ask(&request, &reply, &conn);
			close(conn);
			printf(reply.status ? "status %u\n" : "ok %u\n",
			       reply.status ? reply.status : reply.device);
		} else if (!strcmp(word, "truth")) {
			request.op = ATTACH_OP_TRUTH;
			request.device = a;
			ask(&request, &reply, &conn);
			close(conn);
			printf(reply.status ? "status %" PRIu64 "\n" : "ok %" PRIu64 "\n",
			       reply.status ? reply.status : reply.bytes);
		} else if (!strcmp(word, "exec")) {
			execl("/proc/self/exe", argv[0], dir, NULL);
		} else if (!ledger) {
			puts("detached");
		} else if (!strcmp(word, "charge") && on) {
			enum ledger_result result = ledger_charge(&account[a], b);

			if (result == LEDGER_OK)
				ledger_count_allocation(&account[a]);
			else if (result == LEDGER_REFUSED)
				ledger_count_refusal(&account[a]);
			say(result, &account[a].held);
		} else if (!strcmp(word, "release") && on) {
			say(ledger_release(&account[a], b), &account[a].held);
		} else if (!strcmp(word, "context") && on) {
			ledger_set_context(&account[a], b);
			say(LEDGER_OK, &account[a].held);
		} else if (!strcmp(word, "refused") && on) {
			request.op = ATTACH_OP_REFUSED;
			request.device = a;
			request.bytes = b;
			request.used = ledger->device[a].word.used;
			request.overhead = ledger_held(ledger, a, 0);
			request.call = 1;
			ledger_count_refusal(&account[a]);
			ask(&request, &reply, &conn); /* which is not answered */
			close(conn);
			say(LEDGER_OK, &request.used);
		} else if (!strcmp(word, "count") && on) {
			for (uint64_t i = 0; i < b; i++)
				ledger_count_refusal(&account[a]);
			say(LEDGER_OK, &b);
		} else if (!strcmp(word, "used") && on) {
			say(LEDGER_OK, &ledger->device[a].word.used);
		} else if (!strcmp(word, "limit") && on) {
			say(LEDGER_OK, &ledger->device[a].limit);
		} else if (!strcmp(word, "number") && on) {
			b = ledger_number(ledger, a, lane);
			say(LEDGER_OK, &b);
		} else if (!strcmp(word, "hammer") && on) {
			while (b--) {
				if (ledger_charge(&account[a], 1 + b % 7) == LEDGER_OK && b % 3)
					ledger_release(&account[a], 1 + b % 7);
			}
			ledger_set(&account[a], 0);
			say(LEDGER_OK, &account[a].held);
		} else if (!strcmp(word, "scribble") && n == 3) {
			scribble(a | 1, b);
			puts("ok");
		} else if (!strcmp(word, "poke") && n == 3 && a <= sizeof(*ledger) - 8) {
			memcpy((char *)ledger + a, &b, 8);
			puts("ok");
		} else {
			puts("what");
		}
	}
	return 0;
}
