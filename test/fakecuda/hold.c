/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "hold.h"

#include "config.h"
#include "machine_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOWHERE MACHINE_MAX_HOLDS

static int open_file(void)
{
	char state[256], path[sizeof(state) + 8];
	int fd;

	config_state_path(state, sizeof(state));
	snprintf(path, sizeof(path), "%s.files", state);
	(void)!mkfifo(path, 0666);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd != -1)
		(void)!fchmod(fd, 0666);
	return fd;
}

/* A descriptor to query others' locks; it never holds one itself. */
static int looker(void)
{
	static atomic_int kept = -1;
	int fd = atomic_load(&kept), none = -1;

	if (fd != -1)
		return fd;
	fd = open_file();
	if (fd != -1 && !atomic_compare_exchange_strong(&kept, &none, fd)) {
		close(fd);
		fd = none;
	}
	return fd;
}

/* True if a description other than that of `fd` has locked the hold's byte. */
static bool is_locked_for(int fd, unsigned place)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = place, .l_len = 1};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static struct object *object_at(uint64_t id)
{
	struct object *object = &machine_state->object[id % MACHINE_MAX_OBJECTS];

	return id && atomic_load(&object->id) == id ? object : NULL;
}

static bool hold_is_live(unsigned place)
{
	struct hold *hold = &machine_state->hold[place];
	pid_t pid;

	if (atomic_load(&hold->kind) == HOLD_FILE)
		return is_locked_for(looker(), place);
	return machine_record_is_live(atomic_load(&hold->record), &pid);
}

/* For each place of an object the place of its first hold, plus 1; 0 if it has none. */
static void find_first(unsigned first[MACHINE_MAX_OBJECTS], bool live_only)
{
	unsigned count = atomic_load(&machine_state->hold_count);

	memset(first, 0, MACHINE_MAX_OBJECTS * sizeof(first[0]));
	for (unsigned i = 0; i < count; i++) {
		struct hold *hold = &machine_state->hold[i];
		uint64_t id = atomic_load(&hold->object);
		unsigned *found = &first[id % MACHINE_MAX_OBJECTS];

		if (!object_at(id))
			continue;
		if (*found &&
		    atomic_load(&machine_state->hold[*found - 1].order) < atomic_load(&hold->order))
			continue;
		if (!live_only || hold_is_live(i))
			*found = i + 1;
	}
}

uint64_t objects_held(unsigned device, uint64_t listed[])
{
	unsigned first[MACHINE_MAX_OBJECTS];
	uint64_t used = 0;

	if (!atomic_load(&machine_state->hold_count))
		return 0;
	find_first(first, true);
	for (unsigned i = 0; i < MACHINE_MAX_OBJECTS; i++) {
		const struct object_info *info = &machine_state->object[i].info;
		struct hold *hold;

		if (!first[i] || info->device != device)
			continue;
		used += info->bytes;
		hold = &machine_state->hold[first[i] - 1];
		if (listed && atomic_load(&hold->kind) == HOLD_HANDLE)
			listed[atomic_load(&hold->record)] += info->bytes;
	}
	return used;
}

uint64_t objects_bytes(unsigned device)
{
	uint64_t sum = 0;

	if (!atomic_load(&machine_state->hold_count))
		return 0;
	for (unsigned i = 0; i < MACHINE_MAX_OBJECTS; i++) {
		struct object *object = &machine_state->object[i];

		if (atomic_load(&object->id) && object->info.device == device)
			sum += object->info.bytes;
	}
	return sum;
}

/* The following functions expect the state to be locked, except those of hold.h. */

static void forget(unsigned place)
{
	struct hold *hold = &machine_state->hold[place];
	uint64_t id = atomic_load(&hold->object);
	unsigned count = atomic_load(&machine_state->hold_count);
	struct object *object = object_at(id);

	atomic_store(&hold->object, 0);
	for (unsigned i = 0; i < count; i++)
		if (atomic_load(&machine_state->hold[i].object) == id)
			return;
	if (object)
		atomic_store(&object->id, 0);
}

void holds_forget(unsigned record)
{
	unsigned count = atomic_load(&machine_state->hold_count);

	for (unsigned i = 0; i < count; i++) {
		struct hold *hold = &machine_state->hold[i];

		if (atomic_load(&hold->object) && atomic_load(&hold->kind) != HOLD_FILE &&
		    atomic_load(&hold->record) == record)
			forget(i);
	}
}

/* An exit between two stores may have left an object without a hold. */
static void forget_orphans(void)
{
	unsigned first[MACHINE_MAX_OBJECTS];

	find_first(first, false);
	for (unsigned i = 0; i < MACHINE_MAX_OBJECTS; i++)
		if (!first[i])
			atomic_store(&machine_state->object[i].id, 0);
}

void holds_sweep(void)
{
	unsigned count = atomic_load(&machine_state->hold_count);

	if (!count)
		return;
	for (unsigned i = 0; i < count; i++) {
		struct hold *hold = &machine_state->hold[i];

		if (atomic_load(&hold->object) && atomic_load(&hold->kind) == HOLD_FILE &&
		    !hold_is_live(i))
			forget(i);
	}
	forget_orphans();
}

/* A free place in the table; for a file, one without any lock, too. */
static unsigned free_place(enum hold_kind kind)
{
	for (unsigned i = 0; i < MACHINE_MAX_HOLDS; i++)
		if (!atomic_load(&machine_state->hold[i].object) &&
		    (kind != HOLD_FILE || !is_locked_for(looker(), i)))
			return i;
	return NOWHERE;
}

static void put(unsigned place, uint64_t id, enum hold_kind kind)
{
	struct hold *hold = &machine_state->hold[place];

	atomic_store(&hold->order, ++machine_state->last_number);
	atomic_store(&hold->record, machine_own_record());
	atomic_store(&hold->kind, (int)kind);
	atomic_store(&hold->object, id);
	if (place >= atomic_load(&machine_state->hold_count))
		atomic_store(&machine_state->hold_count, place + 1);
}

static struct object *free_object(void)
{
	for (unsigned i = 0; i < MACHINE_MAX_OBJECTS; i++)
		if (!atomic_load(&machine_state->object[i].id))
			return &machine_state->object[i];
	return NULL;
}

uint64_t object_create(const struct object_info *info, enum hold_kind first, unsigned *hold)
{
	struct object *object;
	unsigned place, own = machine_own_record();
	uint64_t id = 0;

	machine_lock();
	holds_sweep();
	object = free_object();
	place = free_place(first);
	if (object && place != NOWHERE) {
		unsigned slot = (unsigned)(object - machine_state->object);

		id = ++machine_state->last_number * MACHINE_MAX_OBJECTS + slot;
		object->info = *info;
		object->origin = place;
		atomic_store(&object->id, id);
		put(place, id, first);
		*hold = place + 1;
		if (info->device != NO_DEVICE)
			atomic_fetch_sub(first == HOLD_HANDLE
			                     ? &machine_state->listed[info->device][own]
			                     : &machine_state->unlisted[info->device][own],
			                 info->bytes);
	}
	machine_unlock();
	return id;
}

/* Exited holders may still be there, if their memory was not needed yet. */
static bool is_held(uint64_t id)
{
	unsigned count = atomic_load(&machine_state->hold_count);

	for (unsigned i = 0; i < count; i++)
		if (atomic_load(&machine_state->hold[i].object) == id && hold_is_live(i))
			return true;
	return false;
}

bool object_find(uint64_t id, struct object_info *info)
{
	const struct object *object;
	bool found;

	machine_lock();
	object = object_at(id);
	found = object && is_held(id);
	if (found)
		*info = object->info;
	machine_unlock();
	return found;
}

bool object_has_origin(uint64_t id)
{
	const struct object *object;
	bool found;

	machine_lock();
	object = object_at(id);
	found = object && atomic_load(&machine_state->hold[object->origin].object) == id &&
	        hold_is_live(object->origin);
	machine_unlock();
	return found;
}

bool object_is_own(uint64_t id)
{
	const struct object *object;
	bool own;

	machine_lock();
	object = object_at(id);
	own = object && atomic_load(&machine_state->hold[object->origin].object) == id &&
	      atomic_load(&machine_state->hold[object->origin].record) == machine_own_record();
	machine_unlock();
	return own;
}

unsigned object_hold(uint64_t id, enum hold_kind kind)
{
	unsigned place = NOWHERE;

	machine_lock();
	if (object_at(id) && is_held(id))
		place = free_place(kind);
	if (place != NOWHERE)
		put(place, id, kind);
	machine_unlock();
	return place == NOWHERE ? 0 : place + 1;
}

void object_let_go(unsigned hold)
{
	if (!hold)
		return;
	machine_lock();
	forget(hold - 1);
	machine_unlock();
}

int object_export(uint64_t id)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	unsigned place;
	int fd = open_file();

	if (fd == -1 || looker() == -1)
		goto no_file;
	machine_lock();
	place = free_place(HOLD_FILE);
	lock.l_start = place;
	if (place == NOWHERE || fcntl(fd, F_OFD_SETLK, &lock) == -1) {
		machine_unlock();
		goto no_file;
	}
	put(place, id, HOLD_FILE);
	machine_unlock();
	return fd;
no_file:
	if (fd != -1)
		close(fd);
	return -1;
}

static bool is_such_a_file(int fd)
{
	struct stat given, ours;

	return looker() != -1 && fstat(fd, &given) == 0 && fstat(looker(), &ours) == 0 &&
	       given.st_dev == ours.st_dev && given.st_ino == ours.st_ino;
}

/* Its description is the one for which a locked byte appears unlocked. */
uint64_t object_of_file(int fd)
{
	unsigned count = atomic_load(&machine_state->hold_count);
	uint64_t found = 0;

	if (!is_such_a_file(fd))
		return 0;
	machine_lock();
	for (unsigned i = 0; i < count && !found; i++) {
		struct hold *hold = &machine_state->hold[i];

		if (atomic_load(&hold->object) && atomic_load(&hold->kind) == HOLD_FILE &&
		    !is_locked_for(fd, i) && is_locked_for(looker(), i))
			found = atomic_load(&hold->object);
	}
	machine_unlock();
	return found;
}
