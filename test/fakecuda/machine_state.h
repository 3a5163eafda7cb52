/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the state file, for the files that write it: machine.c, hold.c, machine_limit.c
 * and machine_checkpoint.c. */
#ifndef FAKECUDA_MACHINE_STATE_H
#define FAKECUDA_MACHINE_STATE_H

#include "hold.h"
#include "machine.h"

#include <fcntl.h>
#include <stdatomic.h>

/* Of Linux 3.15: older C libraries lack the names. */
#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define MACHINE_MAX_OBJECTS 1024u
#define MACHINE_MAX_HOLDS 8192u
#define MACHINE_MAX_LIMITS 512u
#define MACHINE_CGROUP_BYTES 512u

/*
 * The owner of a record, by what a process can know of itself: the 16 random bytes that the kernel
 * gives each executed program, and the pid, which differs in a fork. libcuda and libnvidia-ml in
 * one process do not know of each other, and F_GETLK never returns a process's own locks; so they
 * recognise their process's record by this.
 */
struct identity {
	uint8_t random[16];
	pid_t pid;
	uint64_t namespace; /* inode of the pid namespace of pid; 0: unknown */
};

struct object {
	_Atomic uint64_t id; /* 0 if free. Its place is the id modulo the number of places. */
	unsigned origin;     /* the place of its creator's hold */
	struct object_info info;
};

struct hold {
	_Atomic uint64_t object; /* an id; 0 if free. Written last. */
	_Atomic uint64_t order;
	_Atomic unsigned record; /* of a process; a file's hold lives as long as the file */
	_Atomic int kind;
};

/* machine_limit.c. Written with the state locked. */
struct limit {
	char cgroup[MACHINE_CGROUP_BYTES]; /* "": this place is free */
	uint64_t inode;
	uint32_t device;
	uint64_t hard;
};

struct state {
	atomic_uint magic; /* written last: the rest is complete once it is right */
	uint32_t version;
	uint32_t device_count;
	atomic_uint record_count; /* records below it have been used; it only grows */
	struct machine_device device[MACHINE_MAX_DEVICES];
	struct identity owner[MACHINE_MAX_PROCESSES];
	/* The process's when it joined, in the unified hierarchy; "" if unknown. */
	char cgroup[MACHINE_MAX_PROCESSES][MACHINE_CGROUP_BYTES];
	/* Bytes by device and record. Written by the owner, or by the process that takes over an
	 * exited one's record. */
	_Atomic uint64_t listed[MACHINE_MAX_DEVICES][MACHINE_MAX_PROCESSES];
	_Atomic uint64_t unlisted[MACHINE_MAX_DEVICES][MACHINE_MAX_PROCESSES];
	/* A process without a context on a card is not in NVML's list, whatever it holds there. */
	_Atomic int contexts[MACHINE_MAX_DEVICES][MACHINE_MAX_PROCESSES];
	/* machine_checkpoint.c: an enum machine_phase, and the bytes off the cards for now. The
	 * bytes are used with the state locked. */
	_Atomic int phase[MACHINE_MAX_PROCESSES];
	_Atomic int unmovable[MACHINE_MAX_PROCESSES]; /* allocations; written by the owner */
	uint64_t away_listed[MACHINE_MAX_DEVICES][MACHINE_MAX_PROCESSES];
	uint64_t away_unlisted[MACHINE_MAX_DEVICES][MACHINE_MAX_PROCESSES];
	/* The owner of the lock, by own_name(), to which a waiter has sent SIGCONT since it was
	 * stopped while it had the lock. It stops itself again after it has unlocked. 0: none. */
	_Atomic uint64_t continued;
	/* Written with the state locked, read by anyone. */
	uint64_t last_number;    /* of objects and orders */
	atomic_uint hold_count;  /* holds below it have been used; it only grows */
	atomic_uint limit_count; /* limits below it have been used; it only grows */
	struct limit limit[MACHINE_MAX_LIMITS];
	struct object object[MACHINE_MAX_OBJECTS];
	struct hold hold[MACHINE_MAX_HOLDS];
};

extern struct state *machine_state;

/* Does not exclude threads of one process. */
void machine_lock(void);
void machine_unlock(void);

/*
 * True while the record's owner or a fork of it lives. `*pid` is the owner's pid in the caller's
 * namespace, or 0 if it is not visible there, or exited unseen.
 */
bool machine_record_is_live(unsigned record, pid_t *pid);
unsigned machine_own_record(void);
/* True if the card has that many bytes free. With the state locked. */
bool machine_fits(unsigned device, uint64_t bytes);

/* machine_limit.c. With the state locked: */
void machine_limits_join(unsigned record); /* of this process */
/* True if the limits above the record's process allow that many more bytes. */
bool machine_limits_allow(unsigned device, unsigned record, uint64_t bytes);

/* hold.c. With the state locked: */
void holds_forget(unsigned record);      /* of an exited process */
void holds_sweep(void);                  /* forgets closed files, and objects without a hold */
uint64_t objects_bytes(unsigned device); /* of all objects, held or not */
/* Without the lock: the bytes of held objects. Adds to listed[] those listed for each record. */
uint64_t objects_held(unsigned device, uint64_t listed[]);

#endif
