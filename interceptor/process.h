/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a member of its slice: its lane, its devices, and the bytes charged to them.
 * Hooks charge through grant.h; below that, only this module changes the ledger.
 */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include "attach.h"
#include "charge.h"
#include "cuda_abi.h"
#include "gate.h"
#include "ledger.h"
#include "lock.h"
#include "upcall.h"

#define PROCESS_ORDINALS 64 /* CUDA devices of one process */

enum kind {
	KIND_MEMORY,   /* listed by driver truth for this process */
	KIND_UNLISTED, /* managed memory: listed for no process */
	KIND_OVERHEAD, /* contexts, code, local memory; reported separately */
};

struct held {
	struct account account;
	uint64_t overhead, unlisted; /* parts of the account's bytes */
};

/* The first thread's counters (at_hand.first_thread) in a process with one device: see
 * grant_begin_at_once(). NULL until both are known, and always without MADV_WIPEONFORK. */
struct at_once {
	uint64_t *uncharged;
	uint64_t *allocations;
};

struct common {
	struct ledger *ledger;
	uint32_t lane;
};

/* The kernel clears this memory in a forked child (MADV_WIPEONFORK): the child starts unattached,
 * with nothing held. Its address is constant, so no pointer is loaded on the hot path. */
struct process {
	/* Read by every charge. */
	uint32_t attached; /* 1 once `ledger`, `lane` and the pools are set */
	uint32_t open;     /* bit per ledger device with overhead left open (overhead.h) */
	struct at_once at_once;
	struct gate gate; /* gate.S depends on this offset */
	/* Ledger device of each CUDA ordinal, plus one; 0 if unknown. */
	uint8_t device_of[PROCESS_ORDINALS];

	struct lock attach_lock; /* guards attaching and `device_of` */
	uint32_t said;           /* bits of `enum once`, see say.h */
	uint64_t retry_at;       /* CLOCK_MONOTONIC nanoseconds: no attach before */
	struct ledger *ledger;
	uint32_t lane;
	uint32_t pool_count;
	struct common pools[ATTACH_POOLS]; /* no two have a device in common */
	/* Devices that the enforcer refused, each with the time of its next try. */
	struct {
		uint8_t uuid[16];
		uint64_t retry_at;
	} refused[PROCESS_ORDINALS];

	/* Guards `held`: a lane has one writer at a time. Shares a line with the first device. */
	_Alignas(64) struct lock account_lock;
	uint32_t opened; /* bit per ledger device: its account was opened */
	struct held held[LEDGER_DEVICES];
};

/* Read first by nearly every hook. On one cache line, since the driver's calls evict most of ours
 * from the L1 cache. */
struct at_hand {
	/* The kernel clears `state` in a forked child. Else process_get() detects a fork. */
	bool wiped;
	int devices; /* number of CUDA devices, constant; 0: unknown */
	/* The thread that counts by plain stores: see ledger_count_allocation(). Stays valid after
	 * a fork: at most one live thread has this address. */
	uintptr_t first_thread;
	/* A synchronisation must check for pools to shrink (pool.c). Harmless after a fork. */
	bool may_shrink;
};
extern struct at_hand at_hand;

/* All state of this process: zero before the first relevant call, and in a forked child.
 * process_begin() does not attach. */
extern struct state state; /* its first member is struct process */
void process_begin(void);  /* state.c has all three */

/* The same without the check for a fork, to test whether there is work. */
static inline struct process *process_seen(void)
{
	return (struct process *)(void *)&state;
}

static inline struct process *process_get(void)
{
	if (__builtin_expect(!__atomic_load_n(&at_hand.wiped, __ATOMIC_ACQUIRE), 0))
		process_begin();
	return process_seen();
}

/* Returns the state of this process if it is attached or can attach now, else NULL. */
struct process *process_attach(void);
static inline struct process *process_attached(void)
{
	struct process *process = process_get();

	return __builtin_expect(__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE), 1)
	           ? process
	           : process_attach();
}

/* Called once the process has attached, with no lock held. */
typedef void process_begun_upcall(void);
UPCALLS(process_begun);

/* In attach.c; called with attach_lock held. attach_device() returns the ledger device with the
 * UUID, or -1, for a device with `bytes` of memory. A failed request is not sent again for a
 * second. If `ordinal` is not -1, a message reports a CUDA device without a quota. */
void attach_process(struct process *process);
int attach_device(struct process *process, const uint8_t uuid[16], uint64_t bytes,
                  CUdevice ordinal);

CUresult process_device_uuid(CUdevice ordinal, CUuuid *uuid);

/* Returns the ledger device of a CUDA device, or -1 if the slice has no quota there. */
int process_find_device(struct process *process, CUdevice ordinal);
static inline int process_device(struct process *process, CUdevice ordinal)
{
	int device = (unsigned)ordinal < PROCESS_ORDINALS
	                 ? __atomic_load_n(&process->device_of[ordinal], __ATOMIC_ACQUIRE)
	                 : 0;

	return __builtin_expect(device != 0, 1) ? device - 1
	                                        : process_find_device(process, ordinal);
}

/* The same of the attached process; -1 also if it cannot attach. */
static inline int process_device_attached(CUdevice ordinal)
{
	struct process *process = process_attached();

	return process ? process_device(process, ordinal) : -1;
}

/* Returns the ledger device with a UUID, for a device known from NVML alone. No bytes are charged
 * there. */
int process_device_by_uuid(struct process *process, const uint8_t uuid[16], uint64_t bytes);

static inline bool process_has_one_device(void)
{
	return __atomic_load_n(&at_hand.devices, __ATOMIC_RELAXED) == 1;
}

/* Returns the ordinal of the current context's device; -1 if the driver will refuse the call. */
CUdevice process_current_ordinal(void);

static inline uintptr_t process_this_thread(void)
{
	uintptr_t self;

#if defined(__x86_64__)
	__asm__("movq %%fs:0, %0" : "=r"(self));
#else
	__asm__("mrs %0, tpidr_el0" : "=r"(self));
#endif
	return self;
}

/* Report whether the calling thread counts by plain stores. The second makes it that thread if
 * there is none yet. */
static inline bool process_is_known_first_thread(void)
{
	return __atomic_load_n(&at_hand.first_thread, __ATOMIC_RELAXED) == process_this_thread();
}

static inline bool process_is_first_thread(void)
{
	uintptr_t none = 0;

	if (__builtin_expect(process_is_known_first_thread(), 1))
		return true;
	return !__atomic_load_n(&at_hand.first_thread, __ATOMIC_RELAXED) &&
	       __atomic_compare_exchange_n(&at_hand.first_thread, &none, process_this_thread(),
	                                   false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Returns the slice's pool that has the device, and *device, its index there; NULL if none has
 * it. */
const struct common *process_pool(const struct process *process, const uint8_t uuid[16],
                                  uint32_t *device);

/* Charges `bytes` if they fit now, without making room. *by_pool as in account_charge(). */
enum ledger_result process_charge(struct process *process, int device, uint64_t bytes,
                                  enum kind kind, bool *by_pool);

/* Change the bytes held without checking a limit: for bytes the driver has taken or given back. */
void process_charge_anyway(CUdevice ordinal, uint64_t bytes, enum kind kind);
void process_release(CUdevice ordinal, uint64_t bytes, enum kind kind);
/* Changes the charge from `before` to `after` bytes, by one of the two. */
void process_recharge(CUdevice ordinal, uint64_t before, uint64_t after, enum kind kind);

/* Requests driver truth for this process on the device, less the bytes charged for it in lane 0.
 * Returns false if unavailable. */
bool process_truth(int device, uint64_t *bytes);

#endif
