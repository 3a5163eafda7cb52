/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory with several holding processes: objects of the machine, and their holds.
 *
 * An object's bytes are used on its card while it has a hold: of a process by a handle or by a
 * mapping, or of an open file. NVML lists them for the first remaining hold if that is a process's
 * handle; for a mapping or a file they are listed for no process. (Observed: memory that was
 * exported as a file and then released is in no process's figure, imported or not, while memory
 * opened by its IPC handle passes to the importer's figure when the exporter ends. Imported memory
 * of a pool does not: its importer has a mapping.)
 *
 * As with records, no exit leaves a wrong figure: a hold counts while its owner lives. For a
 * process this is the lock on its record. A file is an open file description of a second file
 * beside the state, with a lock on the hold's byte that belongs to the description and not to a
 * process: the kernel keeps it until the last descriptor is closed, in whichever process or socket
 * it is.
 */
#ifndef FAKECUDA_HOLD_H
#define FAKECUDA_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#define NO_DEVICE UINT32_MAX

enum object_kind {
	OBJECT_PHYSICAL, /* of cuMemCreate */
	OBJECT_LINEAR,   /* a block or whole steps of cuMemAlloc */
	OBJECT_POOL,     /* a pool itself, without bytes */
	OBJECT_SEGMENT,  /* a pool's memory */
};

struct object_info {
	int kind;
	uint32_t device;  /* of the machine; NO_DEVICE: on the host */
	uint64_t bytes;   /* of the card */
	uint64_t size;    /* of the address range, for importers */
	uint64_t address; /* in its creator; 0: none */
	int location_type, location_id;
};

enum hold_kind { HOLD_HANDLE, HOLD_MAPPING, HOLD_FILE };

/*
 * Makes an object of bytes that this process holds already: listed ones if `first` is HOLD_HANDLE,
 * else unlisted ones. *hold is its hold. Returns an id that is never used again, or 0 if there is
 * no room.
 */
uint64_t object_create(const struct object_info *info, enum hold_kind first, unsigned *hold);
/* False if it has no hold any more. */
bool object_find(uint64_t id, struct object_info *info);
/* True if its creator still has its first hold. */
bool object_has_origin(uint64_t id);
bool object_is_own(uint64_t id);

/* A further hold of this process: HOLD_HANDLE or HOLD_MAPPING. 0: no room. */
unsigned object_hold(uint64_t id, enum hold_kind kind);
void object_let_go(unsigned hold);

/* A new file that holds the object, or -1. */
int object_export(uint64_t id);
/* The object of such a file's descriptor, or 0. */
uint64_t object_of_file(int fd);

#endif
