/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a member of its slice: its lane in the ledger, its devices, and what it has
 * charged to them. grant.h is what hooks ask; below it, nothing else touches the ledger.
 */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include "attach.h"
#include "charge.h"
#include "cuda_abi.h"
#include "gate.h"
#include "ledger.h"
#include "lock.h"

#define PROCESS_ORDINALS 64 /* CUDA devices of one process */

/* What bytes are charged for: what the program asked for, and what the driver took beside it. */
enum kind {
	KIND_MEMORY,   /* driver truth lists it for this process */
	KIND_UNLISTED, /* managed memory, which driver truth lists for nobody */
	KIND_OVERHEAD, /* contexts, code, local memory: shown apart */
};

/* What this process holds on one device of the ledger. */
struct held {
	struct account account;
	uint64_t overhead, unlisted; /* parts of what the account holds */
};

/* Where at_hand's first thread counts, in a process that sees one device: see
 * grant_begin_at_once(). NULL until both are known, and where the kernel cannot wipe them in a
 * forked child. */
struct at_once {
	uint64_t *uncharged;
	uint64_t *allocations;
};

/* The ledger of a pool of slices, and this process's lane in it. */
struct common {
	struct ledger *ledger;
	uint32_t lane;
};

/* The memory is wiped in a forked child (MADV_WIPEONFORK), which thereby begins anew: not attached,
 * nothing held. What the hooks remember lies behind it: state.h. It has a fixed address: where what
 * is looked at lies shall not have to be looked up first. */
struct process {
	/* What every charge looks at, first. */
	uint32_t attached; /* 1 once `ledger`, `lane` and the pool's are set */
	struct at_once at_once;
	struct gate gate; /* where gate.S knows it to be */
	/* Ledger device of each CUDA device ordinal, plus one; 0 is not known yet. */
	uint8_t device_of[PROCESS_ORDINALS];

	struct lock attach_lock; /* guards attaching and `device_of` */
	uint32_t said;           /* bits of enum once, see say.h */
	uint64_t retry_at;       /* CLOCK_MONOTONIC nanoseconds: attach is not tried again before */
	struct ledger *ledger;
	uint32_t lane;
	uint32_t pool_count;
	struct common pools[ATTACH_POOLS]; /* no two have a device in common */
	/* Devices that were asked for and not given, and the like of retry_at for each. */
	struct {
		uint8_t uuid[16];
		uint64_t retry_at;
	} refused[PROCESS_ORDINALS];

	/* Guards `held`: a lane has one writer at a time. On one line with the first device. */
	_Alignas(64) struct lock account_lock;
	uint32_t opened; /* bit per ledger device: its account was opened */
	struct held held[LEDGER_DEVICES];
};

/* What nearly every hook looks at first: on one cache line, since the driver's own calls leave
 * little of ours in the nearest cache. */
struct at_hand {
	/* The kernel wipes what is remembered in a forked child. Else process_get() has to see
	 * whether this is one. */
	bool wiped;
	int devices; /* how many CUDA devices this process sees; 0: not known yet. Cannot change. */
	/* The thread that counts by plain stores: see ledger_count_allocation(). A forked child may
	 * leave it: of two threads that live one at most has the address. */
	uintptr_t first_thread;
	/* At a synchronisation: a pool is above its threshold, or retired (pool.c). A forked child
	 * may leave it, and finds no pools. */
	bool may_shrink;
};
extern struct at_hand at_hand;

/* What is remembered of this process, from the first call that matters on; before that, and in a
 * forked child, it is all zero. Does not attach. */
extern struct state state; /* state.h; it begins with this */
void process_begin(void);

/* The same for who only looks whether there is something to do. */
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

/* The state of this process if it is attached already or can be now, else NULL. */
struct process *process_attach(void);
static inline struct process *process_attached(void)
{
	struct process *process = process_get();

	return __builtin_expect(__atomic_load_n(&process->attached, __ATOMIC_ACQUIRE), 1)
	           ? process
	           : process_attach();
}

/* The two questions of attach.c, with attach_lock held: become attached; which ledger device has
 * the UUID (-1 if none), of a device with `bytes` of memory. One that failed is not asked again for
 * a second. If `ordinal` is not -1, a person is told that the CUDA device has no quota. */
void attach_process(struct process *process);
int attach_device(struct process *process, const uint8_t uuid[16], uint64_t bytes,
                  CUdevice ordinal);

/* The ledger device that has the UUID already, -1 if none does. Asks nobody and needs no lock. */
int attach_known_device(const struct process *process, const uint8_t uuid[16]);

/* Ask the driver for a CUDA device's UUID. */
CUresult process_device_uuid(CUdevice ordinal, CUuuid *uuid);

/* The ledger device of a CUDA device, -1 if the slice has no quota there. */
int process_find_device(struct process *process, CUdevice ordinal);
static inline int process_device(struct process *process, CUdevice ordinal)
{
	int device = (unsigned)ordinal < PROCESS_ORDINALS
	                 ? __atomic_load_n(&process->device_of[ordinal], __ATOMIC_ACQUIRE)
	                 : 0;

	return __builtin_expect(device != 0, 1) ? device - 1
	                                        : process_find_device(process, ordinal);
}

/* The same by UUID, for a device that the program may know by NVML only: nothing is charged
 * there. */
int process_device_by_uuid(struct process *process, const uint8_t uuid[16], uint64_t bytes);

/* Whether this process is attached and its slice has a quota on the device. */
bool process_ready(CUdevice ordinal);

static inline bool process_has_one_device(void)
{
	return __atomic_load_n(&at_hand.devices, __ATOMIC_RELAXED) == 1;
}

/* The ordinal of the current context's device, or -1: then the call is the driver's to refuse. */
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

/* Whether the calling thread is the one that counts by plain stores; and the same where there may
 * be none yet: then the first that asks is. */
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

/* The slice's pool that has the device with the UUID, and which of its ledger's it is; NULL if none
 * has. */
const struct common *process_pool(const struct process *process, const uint8_t uuid[16],
                                  uint32_t *device);

/* Charge `bytes`, if they fit now: nothing is done to make room. *by_pool is account_charge()'s. */
enum ledger_result process_charge(struct process *process, int device, uint64_t bytes,
                                  enum kind kind, bool *by_pool);

/* Add to what is held, up or down, without asking a limit: for what the driver holds already, and
 * for what it gave back. */
void process_charge_anyway(CUdevice ordinal, uint64_t bytes, enum kind kind);
void process_release(CUdevice ordinal, uint64_t bytes, enum kind kind);
/* What is charged as `before` becomes `after`, by one of the two. */
void process_recharge(CUdevice ordinal, uint64_t before, uint64_t after, enum kind kind);

/* What driver truth says that this process holds on the device, less what the enforcer has charged
 * for it by itself; false if it is unknown. Asks the enforcer. */
bool process_truth(int device, uint64_t *bytes);

#endif
