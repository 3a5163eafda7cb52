/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine: its cards, and the memory of each live process on them.
 *
 * The machine is one file in shared memory, mapped by every process with the simulated libcuda or
 * libnvidia-ml. The memory used on a card is not stored: it is the sum over the records of live
 * processes, and each record is written by its owner alone. So an exit at any instruction leaves no
 * wrong figure, and nothing to repair. Memory of several processes is counted in the same way, by
 * its holders: hold.h.
 *
 * A process is live while the kernel keeps its POSIX lock on its record's byte. Such a lock ends at
 * exit or exec, is not inherited by a fork, and F_GETLK returns its holder's pid in the *caller's*
 * pid namespace: a container's process, which cannot know its own pid on the host, is listed there
 * with the right one. A robust mutex would not do: its owner word is a thread id of the owner's
 * namespace, and the kernel would take thread 7 of one container for thread 7 of another.
 *
 * A fork keeps the process's memory on the card, though it cannot use it: the card releases it when
 * the last descriptor of the driver's files is closed, and NVML lists it under the exited process's
 * pid until then. So each process has a second lock, of an open file description that its forks
 * inherit and an exec closes. The kernel does not report the holder of that. A process that saw the
 * owner alive knows its pid, as does the owner's namespace.
 *
 * Closing *any* descriptor of a file drops all the process's POSIX locks on it. So no descriptor is
 * ever closed, and neither library is ever unloaded.
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
	uint64_t reserved; /* the part that the driver keeps for itself */
	uint8_t uuid[16];
};

struct machine_process {
	pid_t pid; /* in the caller's pid namespace */
	uint64_t bytes;
};

enum machine_status {
	MACHINE_OK,
	MACHINE_UNREACHABLE, /* the state file cannot be made, opened or mapped */
	MACHINE_MISMATCH,    /* another version of the simulation made it */
	MACHINE_FULL,        /* no free record */
};

/* Maps the state, and makes it if missing. Idempotent. */
enum machine_status machine_open(void);

unsigned machine_device_count(void);
const struct machine_device *machine_device(unsigned device);

/*
 * Gives this process a record. cuInit calls it once. If a process has several libcudas, in
 * namespaces of the loader or by other names, each has a record.
 */
enum machine_status machine_join(void);

/*
 * Adds to this process's memory, unless the card has too little free or a cgroup's limit is
 * exceeded (machine_limit.h): bytes that NVML lists for the process, and bytes used on the card but
 * listed for no process. The caller serialises its process's threads for charge and release, since
 * a POSIX lock does not.
 */
bool machine_charge(unsigned device, uint64_t listed, uint64_t unlisted);
void machine_release(unsigned device, uint64_t listed, uint64_t unlisted);

/* Makes this process's listed bytes unlisted, or the other way. */
void machine_move(unsigned device, uint64_t bytes, bool to_listed);

/* Adds to this process's number of contexts on the card; count is 1 or -1. */
void machine_add_context(unsigned device, int count);

/* By a signal. */
bool machine_is_stopped(pid_t pid);

/* The bytes of all live processes, listed or not. */
uint64_t machine_used(unsigned device);

/*
 * Writes up to `max` processes, each once, that have a context and listed bytes on the card and are
 * visible in the caller's pid namespace. Returns their number.
 */
unsigned machine_processes(unsigned device, struct machine_process *out, unsigned max);

#endif
