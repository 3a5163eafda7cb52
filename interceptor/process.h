/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process as a member of its slice: its lane in the ledger, its devices, and the charging
 * of bytes to them. Hooks say what they take and give back here; nothing else touches the ledger.
 */
#ifndef GPUSLICE_PROCESS_H
#define GPUSLICE_PROCESS_H

#include "charge.h"
#include "cuda_abi.h"
#include "ledger.h"
#include "lock.h"
#include "map.h"
#include "nvml_cache.h"

#define PROCESS_ORDINALS 64  /* CUDA devices of one process */
#define PROCESS_PRESENT 1024 /* words of the filter of block_maybe() */
#define PROCESS_GRAPHS 256   /* the like, of hook_graph.c */

/* What became of a request for bytes. */
enum charge_result {
	CHARGE_OK,
	CHARGE_REFUSED,   /* it does not fit */
	CHARGE_UNATTACHED /* no ledger: the quota is unknown, so nothing is granted (fail closed) */
};

struct pool;

/* All that is remembered about this process. The memory is wiped in a forked child
 * (MADV_WIPEONFORK), which thereby begins anew: not attached, nothing held. */
struct process {
	struct lock attach_lock; /* guards attaching and `device_of` */
	uint32_t attached;       /* 1 once `ledger`, `lane` and the pool's are set */
	uint32_t pid;            /* only where the kernel cannot wipe at fork; else 0 */
	uint32_t said;           /* bits of enum once, see say.h */
	uint64_t retry_at;       /* CLOCK_MONOTONIC nanoseconds: attach is not tried again before */
	struct ledger *ledger;
	uint32_t lane;
	/* The ledger of the slice's pool, and the lane in it; NULL if the slice is in none. */
	struct ledger *pool_ledger;
	uint32_t pool_lane;

	/* Ledger device of each CUDA device ordinal, plus one; 0 is not known yet. */
	uint8_t device_of[PROCESS_ORDINALS];
	/* Devices that were asked for and not given, and the like of retry_at for each. */
	struct {
		uint8_t uuid[16];
		uint64_t retry_at;
	} refused[PROCESS_ORDINALS];

	struct nvml_cache nvml; /* nvml.c */

	struct lock account_lock; /* guards `account`: a lane has one writer at a time */
	uint32_t opened;          /* bit per ledger device: its account was opened */
	struct account account[LEDGER_DEVICES];
	uint64_t context_bytes[LEDGER_DEVICES]; /* part of what is held that is contexts */
	uint64_t told_second;                   /* refusal.c: CLOCK_MONOTONIC second of the last */
	uint32_t told;                          /* refusals of which the enforcer was told in it */

	struct map blocks; /* block.c: linear memory, by 2 MiB of addresses */
	uint32_t blocks_present[PROCESS_PRESENT]; /* how many entries of `blocks` hash here */
	struct map pointers; /* hold.c: managed memory by address, arrays by handle */
	struct map contexts; /* hook_context.c, hook_green.c */
	bool green;          /* a context was ever made from a green one */

	struct lock vmm_lock;
	struct map handles;  /* object.h: physical memory by handle, */
	struct map mappings; /* by address, */
	struct map binds;    /* and by part of an array or multicast object */
	bool bound;          /* there was ever one in `binds` */

	struct lock pool_lock; /* guards the list; a pool has a lock of its own */
	struct pool *pools;
	struct pool *current_pool[PROCESS_ORDINALS]; /* what cuMemAllocAsync draws on */
	struct pool *graph_pool[PROCESS_ORDINALS];

	struct map graphs;                       /* hook_graph.c: executable graphs that allocate */
	uint32_t graphs_present[PROCESS_GRAPHS]; /* how many entries of `graphs` hash here */
};

/* NULL until the first call that matters. Read it only to see whether there is something to do; in
 * a forked child what it points to is empty. */
extern struct process *this_process;

/* The state of this process; never NULL but when memory is short. Does not attach. */
struct process *process_get(void);

/* The state of this process if it is attached already or can be now, else NULL. */
struct process *process_attached(void);

/* The two questions of attach.c, with attach_lock held: become attached; which ledger device has
 * the UUID (-1 if none), of a device with `bytes` of memory. One that failed is not asked again for
 * a second. If `ordinal` is not -1, a person is told that the CUDA device has no quota. */
void attach_process(struct process *process);
int attach_device(struct process *process, const uint8_t uuid[16], uint64_t bytes,
                  CUdevice ordinal);

/* Which ledger device has the UUID, or -1 if none has it yet. */
int attach_known_device(const struct process *process, const uint8_t uuid[16]);

/* The ledger device of a CUDA device ordinal, or -1 if the slice has no quota there. */
int process_device(struct process *process, CUdevice ordinal);

/* The like for a device of `bytes` of memory that is known by its UUID. Only to look at: nothing
 * can be charged there before process_device() was asked. */
int process_device_by_uuid(struct process *process, const uint8_t uuid[16], uint64_t bytes);

/* Whether this process is attached and its slice has a quota on the device. */
bool process_ready(CUdevice ordinal);

/* How many CUDA devices this process sees; 0 is not known yet. It cannot change. */
extern int process_devices;

static inline bool process_has_one_device(void)
{
	return __atomic_load_n(&process_devices, __ATOMIC_RELAXED) == 1;
}

/* The ordinal of the current context's device, or -1: then the call is the driver's to refuse. */
CUdevice process_current_ordinal(void);

/*
 * Around a call of the driver for an allocation that is charged only afterwards, and that charge:
 * what it takes is not hidden memory meanwhile. NULL if this process is not attached or its slice
 * has no quota on the device; then the call is not made. An allocation that succeeded is counted.
 */
const struct ledger_account *process_begin_uncharged(CUdevice ordinal);
void process_end_uncharged(const struct ledger_account *lane, bool succeeded);

/* Count an allocation that succeeded. */
void process_count(CUdevice ordinal);

/* Charge `bytes` on the device `ordinal`. Before it refuses it gives back what can be: dead
 * siblings' bytes and free memory of own pools. `what` names the caller for messages. */
enum charge_result process_charge(CUdevice ordinal, uint64_t bytes, const char *what);

/* The same, for a caller that can do without: it tells and counts no refusal. */
enum charge_result process_try_charge(CUdevice ordinal, uint64_t bytes);

/* Charge without asking the limit: for what the driver holds already. */
void process_charge_anyway(CUdevice ordinal, uint64_t bytes);

void process_release(CUdevice ordinal, uint64_t bytes);

/* Contexts are charged like other memory, and shown apart. */
enum charge_result process_charge_context(CUdevice ordinal, uint64_t bytes);
void process_release_context(CUdevice ordinal, uint64_t bytes);

/* What driver truth says that this process holds on the device; false if it is unknown. Asks the
 * enforcer. */
bool process_truth(CUdevice ordinal, uint64_t *bytes);

#endif
