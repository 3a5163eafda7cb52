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
 *	half INDEX BYTES      -> ok HELD (charges the slice, and not its pool)
 *	context INDEX BYTES   -> ok HELD
 *	refused INDEX BYTES   -> ok USED (as a refusal that the enforcer is told of)
 *	count INDEX COUNT     -> ok COUNT (as so many refusals that it is not told of)
 *	used INDEX            -> ok BYTES
 *	pooled INDEX          -> ok BYTES (that all charged to the pool)
 *	pokepool OFFSET VALUE -> ok (writes 8 bytes of the first pool's page)
 *	limit INDEX           -> ok BYTES
 *	number INDEX          -> ok NUMBER
 *	begin INDEX           -> ok CALLS (of calls that are under way and charged afterwards)
 *	end INDEX             -> ok CALLS
 *	hammer INDEX COUNT    -> ok HELD (charges and releases, again and again)
 *	churn INDEX COUNT     -> ok HELD (the like, and keeps nothing)
 *	scribble SEED COUNT   -> ok (writes random bytes all over the page)
 *	poke OFFSET VALUE     -> ok (writes 8 bytes)
 *	return                -> ok 0 | status N (is the slice back?)
 *	host FROM TO          -> ok FILES (of host memory that came) | status N
 *	gate                  -> ok 0 (it counts its calls of the driver from here on)
 *	enter                 -> ok CALLS (that are under way) | away
 *	leave                 -> ok CALLS
 *	hop                   -> (it becomes a child of its own, again and again)
 *	stubborn              -> ok 0 (SIGTERM does not end it any more)
 *	terms                 -> ok COUNT (of SIGTERM since then)
 *	exec                  -> ok (becomes a new image of itself, that has not attached)
 *
 * Its argument is the slice's directory.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../../interceptor/attach.h"
#include "../../interceptor/charge.c"
#include "../../interceptor/ledger.c"

static const char *dir;
static struct ledger *ledger, *pools[ATTACH_POOLS];
static uint32_t lane, pool_count;
static uint16_t pool_lane[ATTACH_POOLS];
static struct account account[LEDGER_DEVICES];

/* Ask; how many descriptors came with the answer, or -1. *conn stays open. */
static int ask_for(struct attach_request *request, struct attach_reply *reply, int *conn,
                   int fds[1 + ATTACH_POOLS])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	union {
		char buffer[CMSG_SPACE((1 + ATTACH_POOLS) * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {reply, sizeof(*reply)};
	struct msghdr message = {.msg_iov = &iov,
	                         .msg_iovlen = 1,
	                         .msg_control = control.buffer,
	                         .msg_controllen = sizeof(control.buffer)};
	struct cmsghdr *header;
	int count = 0;

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
	if (header && header->cmsg_type == SCM_RIGHTS) {
		count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(header), (size_t)count * sizeof(int));
	}
	return count;
}

static int ask(struct attach_request *request, struct attach_reply *reply, int *conn)
{
	int fds[1 + ATTACH_POOLS];

	return ask_for(request, reply, conn, fds);
}

/* Stand at the gate, for some seconds at most. */
static const char *await_return(void)
{
	struct timespec pause = {.tv_nsec = 1000000};

	for (int i = 0; __atomic_load_n(&ledger->away, __ATOMIC_SEQ_CST); i++) {
		if (__atomic_load_n(&ledger->flags, __ATOMIC_SEQ_CST) & LEDGER_CLOSED)
			return "status 3";
		if (i == 300)
			return "status 9";
		if (i % 100 == 0) {
			__atomic_add_fetch(&ledger->lane[lane].calls, 1 << 16, __ATOMIC_SEQ_CST);
			__atomic_add_fetch(&ledger->wishes, 1, __ATOMIC_SEQ_CST);
			syscall(SYS_futex, &ledger->wishes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		}
		nanosleep(&pause, NULL);
	}
	return "ok 0";
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
	int conn, fds[1 + ATTACH_POOLS], count = ask_for(&request, &reply, &conn, fds);
	struct ledger *pages[1 + ATTACH_POOLS];
	bool known, good = true;

	if (count <= 0)
		return reply.status ? reply.status : 101;
	for (int i = 0; i < count; i++) {
		pages[i] =
		    mmap(NULL, sizeof(*pages[i]), PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
		close(fds[i]);
		good &= pages[i] != MAP_FAILED && ledger_valid(pages[i], reply.size) &&
		        (i == 0 || reply.pool_lane[i - 1] != 0);
	}
	known = connected(conn);
	close(conn);
	if (!good || (count <= (int)ATTACH_POOLS && reply.pool_lane[count - 1] != 0))
		return 102;
	if (!known) {
		for (int i = 0; i < count; i++)
			munmap(pages[i], sizeof(*pages[i]));
		return 100;
	}
	ledger = pages[0];
	lane = reply.lane;
	pool_count = (uint32_t)count - 1;
	memcpy(pools, pages + 1, pool_count * sizeof(*pools));
	memcpy(pool_lane, reply.pool_lane, sizeof(pool_lane));
	memset(account, 0, sizeof(account));
	for (unsigned i = 0; i < LEDGER_DEVICES; i++)
		account[i].slice = ledger_open(ledger, i, lane);
	return 0;
}

/* The account of a device, with the pool's as soon as that has the device. */
static struct account *on_device(uint64_t device)
{
	struct account *a = &account[device];

	for (uint32_t i = 0; i < pool_count && !a->pool.ledger; i++) {
		int index = account_find_device(pools[i], ledger->device[device].uuid);

		if (index >= 0)
			a->pool = ledger_open(pools[i], (uint32_t)index, pool_lane[i]);
	}
	return a;
}

static uint64_t used_in_pool(uint64_t device)
{
	return account[device].pool.ledger->device[account[device].pool.device].word.used;
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

static bool returned; /* "return" has attached the process, and nothing else did since */
static volatile sig_atomic_t terms;

static void count_term(int signal)
{
	(void)signal;
	terms++;
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
			unsigned status = returned ? 0 : do_attach();

			returned = false;
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
		} else if (!strcmp(word, "host") && n == 3) {
			int fds[1 + ATTACH_POOLS], count;

			request.op = ATTACH_OP_HOST;
			request.used = a;
			request.bytes = b;
			count = ask_for(&request, &reply, &conn, fds);
			close(conn);
			for (int i = 0; i < count; i++)
				close(fds[i]);
			printf(reply.status ? "status %u\n" : "ok %u\n",
			       reply.status ? reply.status : (unsigned)count);
		} else if (!strcmp(word, "hop")) {
			for (;;)
				if (fork() > 0)
					_exit(0);
		} else if (!strcmp(word, "stubborn")) {
			/* SA_RESTART: what is being read is still read. */
			struct sigaction action = {.sa_handler = count_term,
			                           .sa_flags = SA_RESTART};

			sigaction(SIGTERM, &action, NULL);
			puts("ok 0");
		} else if (!strcmp(word, "terms")) {
			printf("ok %d\n", (int)terms);
		} else if (!strcmp(word, "exec")) {
			execl("/proc/self/exe", argv[0], dir, NULL);
		} else if (!strcmp(word, "return") && !ledger) {
			unsigned status = do_attach();

			returned = status == 0;
			printf(status ? "status %u\n" : "ok 0\n", status);
		} else if (!ledger) {
			puts("detached");
		} else if (!strcmp(word, "return")) {
			puts(await_return());
		} else if (!strcmp(word, "charge") && on) {
			bool by_pool;
			enum ledger_result result = account_charge(on_device(a), b, &by_pool);

			if (result == LEDGER_OK)
				ledger_count_allocation(&account[a].slice, true);
			else if (result == LEDGER_REFUSED)
				account_count_refusal(&account[a], by_pool);
			say(result, &account[a].slice.held);
		} else if (!strcmp(word, "gate")) {
			__atomic_store_n(&ledger->lane[lane].calls, 1 << 16, __ATOMIC_SEQ_CST);
			puts("ok 0");
		} else if (!strcmp(word, "enter") || !strcmp(word, "leave")) {
			b = __atomic_add_fetch(&ledger->lane[lane].calls,
			                       *word == 'e' ? (1 << 16) + 1 : -(uint64_t)1,
			                       __ATOMIC_SEQ_CST);
			if (*word == 'e' && __atomic_load_n(&ledger->away, __ATOMIC_SEQ_CST)) {
				__atomic_sub_fetch(&ledger->lane[lane].calls, 1, __ATOMIC_SEQ_CST);
				puts("away");
			} else {
				printf("ok %u\n", (unsigned)(uint16_t)b);
			}
		} else if (!strcmp(word, "half") && on) {
			say(ledger_charge(&account[a].slice, b), &account[a].slice.held);
		} else if (!strcmp(word, "release") && on) {
			account_adjust(on_device(a), 0, b);
			say(LEDGER_OK, &account[a].slice.held);
		} else if (!strcmp(word, "context") && on) {
			account_set_context(on_device(a), b);
			say(LEDGER_OK, &account[a].slice.held);
		} else if (!strcmp(word, "refused") && on) {
			struct ledger_refusal refusal = {
			    .bytes = b,
			    .used = ledger->device[a].word.used,
			    .overhead = ledger_held(ledger, a, 0),
			    .device = a,
			    .call = LEDGER_CALL_ALLOC,
			    .by_pool = on_device(a)->pool.ledger != NULL,
			};

			if (refusal.by_pool)
				refusal.used = used_in_pool(a);
			ledger_describe_refusal(ledger, lane, &refusal);
			account_count_refusal(&account[a], refusal.by_pool);
			say(LEDGER_OK, &refusal.used);
		} else if (!strcmp(word, "count") && on) {
			for (uint64_t i = 0; i < b; i++)
				account_count_refusal(&account[a], false);
			say(LEDGER_OK, &b);
		} else if (!strcmp(word, "used") && on) {
			say(LEDGER_OK, &ledger->device[a].word.used);
		} else if (!strcmp(word, "pooled") && on && on_device(a)->pool.ledger) {
			b = used_in_pool(a);
			say(LEDGER_OK, &b);
		} else if (!strcmp(word, "pokepool") && n == 3 && pool_count &&
		           a <= sizeof(*pools[0]) - 8) {
			memcpy((char *)pools[0] + a, &b, 8);
			puts("ok");
		} else if (!strcmp(word, "limit") && on) {
			say(LEDGER_OK, &ledger->device[a].limit);
		} else if (!strcmp(word, "cost") && on) {
			say(LEDGER_OK, &ledger->device[a].context_bytes);
		} else if (!strcmp(word, "number") && on) {
			b = ledger_number(ledger, a, lane);
			say(LEDGER_OK, &b);
		} else if ((!strcmp(word, "begin") || !strcmp(word, "end")) && on) {
			if (*word == 'b')
				ledger_begin_uncharged(&on_device(a)->slice, false);
			else
				ledger_end_uncharged(&on_device(a)->slice, false);
			b = ledger_uncharged(ledger, a, lane).under_way;
			say(LEDGER_OK, &b);
		} else if (!strcmp(word, "hammer") && on) {
			bool by_pool;

			while (b--) {
				if (account_charge(on_device(a), 1 + b % 7, &by_pool) ==
				        LEDGER_OK &&
				    b % 3)
					account_adjust(&account[a], 0, 1 + b % 7);
			}
			account_adjust(&account[a], 0, UINT64_MAX);
			say(LEDGER_OK, &account[a].slice.held);
		} else if (!strcmp(word, "churn") && on) {
			bool by_pool;

			while (b--) {
				if (account_charge(on_device(a), 1 + b % 7, &by_pool) == LEDGER_OK)
					account_adjust(&account[a], 0, 1 + b % 7);
			}
			say(LEDGER_OK, &account[a].slice.held);
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
