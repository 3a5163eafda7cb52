/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "machine.h"

#include "config.h"
#include "machine_state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STATE_MAGIC 0x41444355u /* "UCDA" */
#define STATE_VERSION 8u

/* Byte ranges of the file, used for locks alone. The length of the state's lock is the name of the
 * process that has it. */
#define STATE_LOCK ((off_t)1 << 48)
#define RECORD_LOCK(record) (1 + (off_t)(record))
/* Held by an open file description that the owner shares with its forks. */
#define SHARED_LOCK(record) (RECORD_LOCK(record) + MACHINE_MAX_PROCESSES)
#define NO_RECORD MACHINE_MAX_PROCESSES

struct state *machine_state;
static int state_fd = -1;
static int shared_fd = -1; /* the same file, by another description with a lock of its own */
static unsigned own_record = NO_RECORD;
static struct identity self;
/* The pids by which this process has seen the owners of records, below a part of their identity. */
static _Atomic uint64_t seen[MACHINE_MAX_PROCESSES];

static int lock_range(int fd, off_t begin, off_t length, short type, int command)
{
	struct flock lock = {
	    .l_type = type, .l_whence = SEEK_SET, .l_start = begin, .l_len = length};
	int result;

	do
		result = fcntl(fd, command, &lock);
	while (result == -1 && errno == EINTR);
	return result;
}

static int lock_byte(int fd, off_t byte, short type, int command)
{
	return lock_range(fd, byte, 1, type, command);
}

/* True if another process (F_GETLK) or description (F_OFD_GETLK) has locked the byte; *pid is the
 * holder's pid, or 0 if unknown. */
static bool byte_is_locked(off_t byte, int command, pid_t *pid)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (fcntl(state_fd, command, &lock) == -1 || lock.l_type == F_UNLCK)
		return false;
	*pid = lock.l_pid > 0 ? lock.l_pid : 0;
	return true;
}

bool machine_is_stopped(pid_t pid)
{
	char path[32], text[512];
	const char *name_end;
	ssize_t size;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd == -1)
		return false;
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[size > 0 ? size : 0] = '\0';
	name_end = strrchr(text, ')');
	return name_end && strncmp(name_end, ") T", 3) == 0;
}

/* The name of the stopped process that has the state locked; 0: there is none. */
static uint64_t stopped_holder(pid_t *pid)
{
	struct flock lock = {
	    .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = STATE_LOCK, .l_len = 1};

	if (fcntl(state_fd, F_GETLK, &lock) == -1 || lock.l_type == F_UNLCK || lock.l_pid <= 0 ||
	    !machine_is_stopped(lock.l_pid))
		return 0;
	*pid = lock.l_pid;
	return (uint64_t)lock.l_len;
}

/* A process is never stopped with a lock of the kernel's driver: a stop waits for the end of its
 * call. Here the process is continued until it has unlocked. */
static void continue_stopped_holder(void)
{
	pid_t pid;
	uint64_t holder = machine_state ? stopped_holder(&pid) : 0, was;

	if (!holder)
		return;
	/* Only one waiter sends SIGCONT, and only while the process has the lock. */
	was = atomic_load(&machine_state->continued);
	if (was == holder ||
	    !atomic_compare_exchange_strong(&machine_state->continued, &was, holder))
		return;
	if (stopped_holder(&pid) != holder || kill(pid, SIGCONT) == -1)
		atomic_compare_exchange_strong(&machine_state->continued, &holder, 0);
}

/* The same for each driver of a process. */
static off_t own_name(void)
{
	uint32_t random;

	memcpy(&random, self.random, sizeof(random));
	return (off_t)(random & 0xffffff) << 23 | (off_t)self.pid << 1 | 1;
}

void machine_lock(void)
{
	const struct timespec pace = {.tv_nsec = 100000};

	for (unsigned tries = 1;
	     lock_range(state_fd, STATE_LOCK, own_name(), F_WRLCK, F_SETLK) == -1; tries++) {
		if (errno != EAGAIN && errno != EACCES)
			return;
		if (tries % 200 == 0)
			continue_stopped_holder();
		nanosleep(&pace, NULL);
	}
}

void machine_unlock(void)
{
	uint64_t own = (uint64_t)own_name();

	lock_range(state_fd, STATE_LOCK, own_name(), F_UNLCK, F_SETLK);
	if (machine_state && atomic_compare_exchange_strong(&machine_state->continued, &own, 0))
		kill(getpid(), SIGSTOP);
}

static void empty_record(unsigned record)
{
	for (unsigned d = 0; d < MACHINE_MAX_DEVICES; d++) {
		atomic_store(&machine_state->listed[d][record], 0);
		atomic_store(&machine_state->unlisted[d][record], 0);
		machine_state->away_listed[d][record] = 0;
		machine_state->away_unlisted[d][record] = 0;
		atomic_store(&machine_state->contexts[d][record], 0);
	}
	atomic_store(&machine_state->phase[record], 0);
	atomic_store(&machine_state->unmovable[record], 0);
	holds_forget(record);
}

static uint64_t held_by(unsigned device, unsigned record)
{
	return atomic_load(&machine_state->listed[device][record]) +
	       atomic_load(&machine_state->unlisted[device][record]);
}

static void learn_identity(void)
{
	const void *random = (const void *)getauxval(AT_RANDOM);
	struct stat namespace;

	if (random)
		memcpy(self.random, random, sizeof(self.random));
	self.pid = getpid();
	self.namespace = stat("/proc/self/ns/pid", &namespace) == 0 ? namespace.st_ino : 0;
}

static bool is_own_record(unsigned record)
{
	const struct identity *owner = &machine_state->owner[record];

	return owner->pid == self.pid &&
	       memcmp(owner->random, self.random, sizeof(self.random)) == 0;
}

static uint64_t as_seen(unsigned record, pid_t pid)
{
	uint32_t part;

	memcpy(&part, machine_state->owner[record].random, sizeof(part));
	return (uint64_t)part << 32 | (uint32_t)pid;
}

/* The pid of an exited owner, which the kernel no longer reports. */
static pid_t pid_of_the_dead(unsigned record)
{
	const struct identity *owner = &machine_state->owner[record];
	pid_t pid = (pid_t)(uint32_t)atomic_load(&seen[record]);

	if (pid && atomic_load(&seen[record]) == as_seen(record, pid))
		return pid;
	return self.namespace && owner->namespace == self.namespace ? owner->pid : 0;
}

bool machine_record_is_live(unsigned record, pid_t *pid)
{
	if (is_own_record(record)) {
		*pid = self.pid;
		return true;
	}
	if (byte_is_locked(RECORD_LOCK(record), F_GETLK, pid)) {
		atomic_store(&seen[record], as_seen(record, *pid));
		return true;
	}
	if (!byte_is_locked(SHARED_LOCK(record), F_OFD_GETLK, pid))
		return false;
	*pid = pid_of_the_dead(record);
	return true;
}

/*
 * Two libraries of one process may both get here at once, since a POSIX lock does not exclude them.
 * They write the same bytes.
 */
static void build_devices(struct state *fresh)
{
	uint64_t memory = config_device_memory();
	uint64_t reserved = config_device_reserved();
	static const uint8_t uuid[16] = {0x6b, 0x1d, 0x3c, 0x52, 0x9a, 0x04, 0x4e, 0x7f,
	                                 0x8c, 0x21, 0x5f, 0xa6, 0xd0, 0x37, 0xe9, 0x00};

	fresh->version = STATE_VERSION;
	fresh->device_count = config_device_count();
	for (unsigned i = 0; i < fresh->device_count; i++) {
		struct machine_device *device = &fresh->device[i];

		device->memory = memory;
		device->reserved = reserved;
		memcpy(device->uuid, uuid, sizeof(uuid));
		device->uuid[15] = (uint8_t)i;
	}
}

/* `fresh`: the state is locked, and made if the file is empty. */
static enum machine_status map_state(bool fresh)
{
	struct state *mapped;
	off_t size = lseek(state_fd, 0, SEEK_END);

	if (size == -1)
		return MACHINE_UNREACHABLE;
	if (size != (off_t)sizeof(*mapped) && (size != 0 || !fresh))
		return MACHINE_MISMATCH;
	if (size == 0 && ftruncate(state_fd, sizeof(*mapped)) == -1)
		return MACHINE_UNREACHABLE;
	mapped = mmap(NULL, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED, state_fd, 0);
	if (mapped == MAP_FAILED)
		return MACHINE_UNREACHABLE;
	if (fresh && atomic_load(&mapped->magic) == 0) {
		build_devices(mapped);
		atomic_store(&mapped->magic, STATE_MAGIC);
	}
	if (atomic_load(&mapped->magic) != STATE_MAGIC || mapped->version != STATE_VERSION) {
		munmap(mapped, sizeof(*mapped));
		return MACHINE_MISMATCH;
	}
	machine_state = mapped;
	return MACHINE_OK;
}

static enum machine_status map_or_make_state(void)
{
	enum machine_status status = map_state(false);

	if (status == MACHINE_OK)
		return status;
	machine_lock();
	status = map_state(true);
	machine_unlock();
	return status;
}

static int open_state(void)
{
	char path[256];

	config_state_path(path, sizeof(path));
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

enum machine_status machine_open(void)
{
	static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
	enum machine_status status = MACHINE_OK;

	pthread_mutex_lock(&opening);
	learn_identity();
	if (machine_state)
		goto out;
	if (state_fd == -1) {
		state_fd = open_state();
		/* All users may use the card, as with /dev/nvidia0. Only the file's creator
		 * succeeds here, which does no harm. */
		if (state_fd != -1)
			(void)!fchmod(state_fd, 0666);
	}
	status = state_fd == -1 ? MACHINE_UNREACHABLE : map_or_make_state();
out:
	pthread_mutex_unlock(&opening);
	return status;
}

unsigned machine_device_count(void)
{
	return machine_state->device_count;
}

const struct machine_device *machine_device(unsigned device)
{
	return &machine_state->device[device];
}

enum machine_status machine_join(void)
{
	enum machine_status status = MACHINE_FULL;
	pid_t pid;

	if (own_record != NO_RECORD)
		return MACHINE_OK;
	if (shared_fd == -1)
		shared_fd = open_state();
	if (shared_fd == -1)
		return MACHINE_UNREACHABLE;
	machine_lock();
	for (unsigned i = 0; i < MACHINE_MAX_PROCESSES; i++) {
		/* An unlocked record with this process's identity is of an earlier process. A
		 * locked one is of another driver in this process, from a namespace or a file of
		 * its own. */
		if (machine_record_is_live(i, &pid) &&
		    (!is_own_record(i) || byte_is_locked(SHARED_LOCK(i), F_OFD_GETLK, &pid)))
			continue;
		/* Emptied before it is locked: a live record never shows its former owner's
		 * bytes. */
		empty_record(i);
		if (lock_byte(shared_fd, SHARED_LOCK(i), F_WRLCK, F_OFD_SETLK) == -1 ||
		    lock_byte(state_fd, RECORD_LOCK(i), F_WRLCK, F_SETLK) == -1)
			break;
		machine_state->owner[i] = self;
		machine_limits_join(i);
		if (i >= atomic_load(&machine_state->record_count))
			atomic_store(&machine_state->record_count, i + 1);
		own_record = i;
		status = MACHINE_OK;
		break;
	}
	machine_unlock();
	return status;
}

static uint64_t sum_of_all(unsigned device)
{
	unsigned count = atomic_load(&machine_state->record_count);
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++)
		sum += held_by(device, i);
	return sum + objects_bytes(device);
}

/* With the state locked, so that no record changes its owner between the check and the write. */
static void empty_dead_records(void)
{
	unsigned count = atomic_load(&machine_state->record_count);
	pid_t pid;

	for (unsigned i = 0; i < count; i++) {
		if (!machine_record_is_live(i, &pid))
			empty_record(i);
	}
	holds_sweep();
}

bool machine_fits(unsigned device, uint64_t bytes)
{
	const struct machine_device *card = &machine_state->device[device];
	uint64_t capacity = card->memory - card->reserved;

	if (bytes > capacity)
		return false;
	if (sum_of_all(device) <= capacity - bytes)
		return true;
	/* Exited processes are searched for only if their memory is needed: it takes a system call
	 * for each record. */
	empty_dead_records();
	return sum_of_all(device) <= capacity - bytes;
}

bool machine_charge(unsigned device, uint64_t listed, uint64_t unlisted)
{
	bool fits;

	machine_lock();
	fits = machine_fits(device, listed + unlisted) &&
	       machine_limits_allow(device, own_record, listed + unlisted);
	if (fits) {
		atomic_fetch_add(&machine_state->listed[device][own_record], listed);
		atomic_fetch_add(&machine_state->unlisted[device][own_record], unlisted);
	}
	machine_unlock();
	return fits;
}

void machine_release(unsigned device, uint64_t listed, uint64_t unlisted)
{
	atomic_fetch_sub(&machine_state->listed[device][own_record], listed);
	atomic_fetch_sub(&machine_state->unlisted[device][own_record], unlisted);
}

void machine_move(unsigned device, uint64_t bytes, bool to_listed)
{
	_Atomic uint64_t *listed = &machine_state->listed[device][own_record];
	_Atomic uint64_t *unlisted = &machine_state->unlisted[device][own_record];

	machine_lock();
	atomic_fetch_add(to_listed ? listed : unlisted, bytes);
	atomic_fetch_sub(to_listed ? unlisted : listed, bytes);
	machine_unlock();
}

void machine_add_context(unsigned device, int count)
{
	atomic_fetch_add(&machine_state->contexts[device][own_record], count);
}

unsigned machine_own_record(void)
{
	return own_record;
}

uint64_t machine_used(unsigned device)
{
	unsigned count = atomic_load(&machine_state->record_count);
	uint64_t sum = 0;
	pid_t pid;

	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = held_by(device, i);

		if (bytes && machine_record_is_live(i, &pid))
			sum += bytes;
	}
	return sum + objects_held(device, NULL);
}

unsigned machine_processes(unsigned device, struct machine_process *out, unsigned max)
{
	unsigned count = atomic_load(&machine_state->record_count);
	uint64_t shared[MACHINE_MAX_PROCESSES] = {0};
	pid_t pids[MACHINE_MAX_PROCESSES], pid;
	unsigned found = 0;

	objects_held(device, shared);
	for (unsigned i = 0; i < count; i++) {
		uint64_t bytes = atomic_load(&machine_state->listed[device][i]) + shared[i];
		unsigned same = 0;

		if (!bytes || !atomic_load(&machine_state->contexts[device][i]) ||
		    !machine_record_is_live(i, &pid) || !pid)
			continue;
		/* The drivers of one process are listed as one. */
		while (same < found && pids[same] != pid)
			same++;
		if (same < found) {
			if (same < max)
				out[same].bytes += bytes;
			continue;
		}
		pids[found] = pid;
		if (found < max)
			out[found] = (struct machine_process){.pid = pid, .bytes = bytes};
		found++;
	}
	return found;
}
