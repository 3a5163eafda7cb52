/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine: its cards, and what each live process holds on them.
 *
 * The machine is one file in shared memory, mapped by every process that uses the simulated
 * libcuda or libnvidia-ml. What is used on a card is never stored: it is the sum over the
 * records of the processes that live, and each record is written by its owner alone. So a death
 * at any instruction cannot leave a wrong figure behind; there is nothing to repair. What several
 * processes hold is told in the same way, by who holds it: hold.h.
 *
 * A process lives as long as the kernel keeps its POSIX lock on its record's byte. Such a lock
 * goes with the process or with an exec, is not inherited by a fork, and F_GETLK reports its
 * holder's pid in the *asker's* pid namespace: a process in a container, which cannot learn its
 * own pid on the host, is listed there with the right one. A robust mutex could not take its
 * place: its owner word is a thread id of the owner's namespace, and the kernel would mistake
 * thread 7 of one container for thread 7 of another.
 *
 * A fork of a process keeps its memory on the card, though it cannot use it: the card gives it back
 * when the last descriptor of the driver's files is closed, and NVML lists it under the dead
 * process's pid until then. So each process has a second lock, for an open file description that
 * its forks inherit, and that an exec closes. The kernel does not say whose that is; who has seen
 * the process alive knows its pid, and so does its own namespace.
 *
 * The price of POSIX locks is that closing *any* descriptor of the file drops all of the
 * process's locks on it. So no descriptor is ever closed, and both libraries are never unloaded.
 */
#ifndef FAKECUDA_MACHINE_H
#define FAKECUDA_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MACHINE_MAX_DEVICES 16u
#define MACHINE_MAX_PROCESSES 1024u

#define MACHINE_DEVICE_NAME "NVIDIA H100 80GB HBM3 (simulated)"

#define MiB (1024ull * 1024)

struct machine_device {
	uint64_t memory;   /* bytes that NVML reports as the total */
	uint64_t reserved; /* the part of it that the driver keeps from every program */
	uint8_t uuid[16];
};

struct machine_process {
	pid_t pid; /* in the caller's pid namespace */
	uint64_t bytes;
};

enum machine_status {
	MACHINE_OK,
	MACHINE_UNREACHABLE, /* the state file cannot be made, opened or mapped */
	MACHINE_MISMATCH,    /* it was made by another version of the simulation */
	MACHINE_FULL,        /* no free record */
};

/* Maps the state, and makes it if there is none. Idempotent. */
enum machine_status machine_open(void);

unsigned machine_device_count(void);
const struct machine_device *machine_device(unsigned device);

/*
 * Gives this process a record. libcuda calls it once, from cuInit; where a process has several of
 * it, in namespaces of the loader or by other names, each has a record.
 */
enum machine_status machine_join(void);

/*
 * Adds to what this process holds, unless the card has less than that free or its cgroup may hold
 * less (machine_limit.h): bytes that NVML lists
 * as the process's, and bytes that are used on the card for it but listed for nobody. The caller
 * serialises the threads of its process for charge and release: a POSIX lock does not.
 */
bool machine_charge(unsigned device, uint64_t listed, uint64_t unlisted);
void machine_release(unsigned device, uint64_t listed, uint64_t unlisted);

/* Bytes of this process that NVML lists become unlisted, or the other way. */
void machine_move(unsigned device, uint64_t bytes, bool to_listed);

/* This process has one context more on the card, or with -1 one less. */
void machine_add_context(unsigned device, int count);

/* The bytes that all live processes hold together, listed or not. */
uint64_t machine_used(unsigned device);

/*
 * Writes up to `max` processes that have a context and listed bytes on the card and are visible
 * from the caller's pid namespace, each once; returns how many there are.
 */
unsigned machine_processes(unsigned device, struct machine_process *out, unsigned max);

#endif
