/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that several processes may hold: objects of the machine, and who holds them.
 *
 * An object's bytes are used on its card while anything holds it: a process by a handle, a process
 * by a mapping, or an open file. NVML lists them for the first of these that is left, if that is a
 * process with a handle; for a mapping or a file they are listed for nobody. (Observed: memory that
 * was exported as a file and then released is in no process's figure, imported or not, while memory
 * opened by its IPC handle passes to the importer's figure when the exporter ends. Imported memory
 * of a pool does not: who imports it has a mapping of it.)
 *
 * As with records, nothing is stored that a death could leave wrong: a hold counts while its owner
 * lives. For a process the lock on its record says so. A file is an open file description of a
 * second file beside the state, with a lock on the hold's byte that belongs to the description, not
 * to a process: the kernel keeps it until the last descriptor is closed, in whatever process or
 * socket that is.
 */
#ifndef FAKECUDA_HOLD_H
#define FAKECUDA_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#define NO_DEVICE UINT32_MAX

enum object_kind {
	OBJECT_PHYSICAL, /* of cuMemCreate */
	OBJECT_LINEAR,   /* a block or whole steps of cuMemAlloc */
	OBJECT_POOL,     /* a pool itself, which has no bytes */
	OBJECT_SEGMENT,  /* a pool's memory */
};

struct object_info {
	int kind;
	uint32_t device;  /* of the machine; NO_DEVICE: it is on the host */
	uint64_t bytes;   /* of the card */
	uint64_t size;    /* of the address range, for who imports it */
	uint64_t address; /* in the process that made it; 0: none */
	int location_type, location_id;
};

enum hold_kind { HOLD_HANDLE, HOLD_MAPPING, HOLD_FILE };

/*
 * Makes an object of bytes that this process holds already: listed ones if `first` is HOLD_HANDLE,
 * else unlisted ones. *hold is its hold on it. Returns its id, which is never used again, or 0 if
 * there is no room.
 */
uint64_t object_create(const struct object_info *info, enum hold_kind first, unsigned *hold);
/* False if nothing holds it any more. */
bool object_find(uint64_t id, struct object_info *info);
/* Whether the process that made it still has its first hold. */
bool object_has_origin(uint64_t id);
bool object_is_own(uint64_t id);

/* A further hold by this process: HOLD_HANDLE or HOLD_MAPPING. 0: no room. */
unsigned object_hold(uint64_t id, enum hold_kind kind);
void object_let_go(unsigned hold);

/* A new file that holds the object, or -1. */
int object_export(uint64_t id);
/* The object that a descriptor of such a file holds, or 0. */
uint64_t object_of_file(int fd);

#endif
