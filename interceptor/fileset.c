/* SPDX-License-Identifier: Apache-2.0 */
#include "fileset.h"

#include "process.h"
#include "quiet.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FIRST_OF_OURS 3 /* none of ours is a standard descriptor */
#define MOST_KEPT 65536 /* duplicates have lower numbers */

static int epoll_of(const struct fileset *set)
{
	return __atomic_load_n(&set->epoll, __ATOMIC_ACQUIRE);
}

static void make(struct fileset *set)
{
	struct epoll_event none = {0};
	int epoll = epoll_create1(EPOLL_CLOEXEC), token = eventfd(0, EFD_CLOEXEC);

	if (epoll < FIRST_OF_OURS || token < FIRST_OF_OURS ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, token, &none) != 0) {
		close(epoll);
		close(token);
		epoll = -1;
	}
	set->token = token;
	__atomic_store_n(&set->epoll, epoll, __ATOMIC_RELEASE);
}

/* The program may have closed the descriptors, and their numbers may be other files'. */
static bool is_ours(const struct fileset *set)
{
	struct epoll_event none = {0};

	return epoll_of(set) > 0 && epoll_ctl(epoll_of(set), EPOLL_CTL_MOD, set->token, &none) == 0;
}

bool fileset_put(struct fileset *set, int descriptor, uint64_t key)
{
	struct epoll_event event = {.data.u64 = key};

	lock_take(&set->lock);
	if (!set->epoll)
		make(set);
	lock_give(&set->lock);
	return is_ours(set) && epoll_ctl(epoll_of(set), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

/* Return the key in a line of fdinfo, "tfd: N events: N data: N ...", where the last N is
 * hexadecimal; 0 if there is none. */
static uint64_t key_in(const char *line)
{
	const char *at = strstr(line, "data:");
	uint64_t key = 0;

	if (strncmp(line, "tfd:", 4) != 0 || !at)
		return 0;
	for (at += 5; *at == ' '; at++)
		;
	for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
		key = key << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
	return key;
}

bool fileset_look(const struct fileset *set, void (*see)(void *data, uint64_t key), void *data)
{
	char path[40], text[4096], *line, *end;
	size_t have = 0;
	uint64_t key;
	ssize_t n;
	int file;

	if (!is_ours(set))
		return false;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_of(set));
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	while ((n = read(file, text + have, sizeof(text) - have)) > 0) {
		have += (size_t)n;
		for (line = text; (end = memchr(line, '\n', have)); line = end + 1) {
			*end = '\0';
			key = key_in(line);
			if (key)
				see(data, key);
			have -= (size_t)(end + 1 - line);
		}
		memmove(text, line, have);
	}
	close(file);
	return n == 0 && !have;
}

/* --- duplicate descriptors -------------------------------------------------------------------- */

/*
 * A forked child closes these descriptors. Otherwise it would keep the files, and their memory,
 * until it exits. This list survives the wipe of memory in a child. If fork(2) is called while
 * another thread, or an interrupted one, holds the lock, the child keeps the descriptors: a late
 * release is safe.
 */
static struct {
	struct lock lock;
	uintptr_t forking;             /* the thread that forks with the lock held */
	uint64_t kept[MOST_KEPT / 64]; /* a bit for each descriptor */
	int epoll;                     /* the set that has all of them */
	uint32_t begun;
} own;

/* Called with the lock held. */
static bool is_kept(int descriptor)
{
	return own.kept[descriptor / 64] >> descriptor % 64 & 1;
}

static void forget(int kept)
{
	own.kept[kept / 64] &= ~(1ull << kept % 64);
}

/* Forget descriptors that left the set: the program closed them, and may reuse their numbers. */
static void before_fork(void)
{
	struct epoll_event none = {0};
	QUIETLY;

	if (!lock_try(&own.lock))
		return;
	__atomic_store_n(&own.forking, process_this_thread(), __ATOMIC_RELAXED);
	for (int i = 0; i < MOST_KEPT; i++) {
		if (is_kept(i) && epoll_ctl(own.epoll, EPOLL_CTL_MOD, i, &none) != 0)
			forget(i);
	}
}

static bool has_forked(void)
{
	return __atomic_load_n(&own.forking, __ATOMIC_RELAXED) == process_this_thread();
}

static void after_fork(void)
{
	if (!has_forked())
		return;
	__atomic_store_n(&own.forking, 0, __ATOMIC_RELAXED);
	lock_give(&own.lock);
}

static void in_child(void)
{
	QUIETLY;

	for (int i = 0; has_forked() && i < MOST_KEPT; i++) {
		if (is_kept(i))
			close(i);
	}
	memset(own.kept, 0, sizeof(own.kept));
	own.forking = 0;
	own.lock = (struct lock){0};
}

/* pthread_atfork(3), which no library exports. Only glibc has this function. */
extern int register_at_fork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
                            void *library) __asm__("__register_atfork") __attribute__((weak));

int fileset_keep(struct fileset *set, int descriptor)
{
	int kept;

	if (register_at_fork && !__atomic_exchange_n(&own.begun, 1, __ATOMIC_ACQ_REL))
		(void)register_at_fork(before_fork, after_fork, in_child, NULL);
	LOCKED(&own.lock);
	kept = fcntl(descriptor, F_DUPFD_CLOEXEC, FIRST_OF_OURS);
	if (kept >= MOST_KEPT || (kept >= 0 && !fileset_put(set, kept, 0))) {
		close(kept);
		kept = -1;
	}
	if (kept >= 0) {
		own.kept[kept / 64] |= 1ull << kept % 64;
		own.epoll = epoll_of(set);
	}
	return kept < 0 ? 0 : kept;
}

void fileset_close(int kept)
{
	LOCKED(&own.lock);
	if (is_kept(kept) && epoll_ctl(own.epoll, EPOLL_CTL_DEL, kept, NULL) == 0)
		close(kept);
	forget(kept);
}
