/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: the shared memory of one slice, in which its processes charge bytes of VRAM. A pool
 * of slices has one too, for all processes of its members (charge.h); "slice" below means either.
 *
 * This file is the only description of the layout. The interceptor includes it, and the enforcer
 * (Go) calls the same functions through cgo (package enforcer/ledger).
 *
 * Invariants, if any process dies between any two instructions (checked in
 * interceptor/model/ledger.pml):
 *
 *   - `used` of a device is always the exact sum of the bytes its lanes have charged;
 *   - a charge takes effect in one compare-and-swap, and only if it fits the limit then;
 *   - a dead process's bytes are released once, even if the enforcer and siblings try together;
 *   - there is no lock: a process stopped or killed during a charge delays no other.
 *
 * The device word holds `used` and a tag: the lane of the last change, and the change's number in
 * that lane. No tag is used twice. A lane first writes its intent in its entry (number and
 * resulting sum), then swaps the word. Before a writer replaces a tag, it records in that lane's
 * entry that the change took effect (`confirmed`). So a lane's last written change took effect if
 * its tag is in the word or it is confirmed, and otherwise did not. Settling a dead lane is one
 * more numbered change of that lane, to a sum of 0, so it happens at most once. (Recoverable
 * compare-and-swap: Attiya, Ben-Baruch, Hendler, PODC 2018. Here there is one word per device, and
 * other processes recover.)
 *
 * A lane has one writer at a time: the enforcer for lane 0, and for others the process it is
 * assigned to, which serialises its threads by a lock in its own memory.
 *
 * Any process of the slice can overwrite the page. These functions check lane numbers read from it,
 * bound their loops, and never wait on it. A hostile process can only falsify the count of its own
 * slice, which driver truth reveals.
 */
#ifndef GPUSLICE_LEDGER_H
#define GPUSLICE_LEDGER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEDGER_MAGIC 0x52474c4543494c53ull /* "SLICELGR" */
/* Raised when the structures change, except when a reserved word gets a meaning for which 0, as
 * left by an older interceptor, is valid. */
#define LEDGER_LAYOUT 4u
#define LEDGER_DEVICES 16u
#define LEDGER_SLOTS 4096u              /* maximum number of live processes of a slice */
#define LEDGER_LANES (LEDGER_SLOTS + 1) /* lane 0 is the enforcer's */
#define LEDGER_NO_LIMIT UINT64_MAX
#define LEDGER_SHARED 4096u /* notes on memory shared within the slice */

/* The device word, swapped as one. `tag` = lane << 48 | number of the lane's change. */
struct ledger_word {
	uint64_t used; /* bytes charged by all lanes */
	uint64_t tag;
} __attribute__((aligned(16)));

#define LEDGER_TAG_NUMBER ((1ull << 48) - 1)

/* One device. Written by the enforcer only, except for `word` and `peak`. */
struct ledger_device {
	struct ledger_word word;
	uint64_t limit; /* maximum bytes charged; LEDGER_NO_LIMIT in record mode */
	uint64_t quota; /* bytes shown to programs as the device's memory */
	uint64_t peak;  /* highest `used` that was replaced; the true peak is max(peak, used) */
	uint64_t context_bytes;       /* bytes charged in advance for a first context */
	uint64_t total;               /* bytes of the device's memory */
	uint64_t retired_allocations; /* of lanes that were assigned again since */
	uint64_t retired_refusals;
	uint64_t recovered; /* bytes released for dead processes (for metrics only) */
	uint8_t uuid[16];   /* raw bytes, as in cuDeviceGetUuid_v2 and NVML */
	uint64_t stay;      /* elastic: bytes a self-moving process may leave there */
	uint64_t keep;      /* elastic: bytes of host memory kept in LEDGER_BARE */
	uint64_t reserved[2];
};
static_assert(sizeof(struct ledger_device) == 128, "ledger_device");

/* One lane on one device: a cache line, written by the lane's owner, except for `confirmed`. */
struct ledger_entry {
	uint64_t number;    /* the lane's last change written here */
	uint64_t sum[2];    /* sum[n & 1]: bytes held after change n */
	uint64_t confirmed; /* highest change known to have taken effect; written by other lanes */
	uint64_t context;   /* overhead in `sum`, in bytes: contexts, code, local memory */
	uint64_t allocations; /* successful ones since the process attached: see ledger_count() */
	uint64_t refusals;
	uint64_t uncharged; /* calls under way, plus calls ended << 32 */
};
static_assert(sizeof(struct ledger_entry) == 64, "ledger_entry");

enum ledger_lane_state {
	LEDGER_FREE = 0,
	LEDGER_LIVE = 1, /* assigned to a process, which may be dead and not settled yet */
	/* As LEDGER_LIVE, checkpointed. Only the enforcer settles it: it raised the limit by the
	 * bytes held, and lowers it first. */
	LEDGER_SUSPENDED = 2,
};

/* How a process of an elastic slice moves its own memory: the enforcer writes `want`, the process
 * `is`. One futex word, on which each wakes the other. 0 for a process that must not move itself;
 * `is` stays 0 in one that cannot. */
enum ledger_place {
	LEDGER_PLACE_UNKNOWN = 0,
	LEDGER_RUNNING = 1, /* on the device, and in use */
	LEDGER_LOCKED = 2,  /* on the device; no work of the process runs there or starts */
	LEDGER_ASIDE = 3,   /* in host memory, except for what may stay; no work runs */
	LEDGER_BETWEEN = 4, /* `is` only: partly in each; no work runs */
	LEDGER_BARE = 5,    /* `want` only: running, with at most `keep` bytes of host memory */
};

/* Why a move failed. */
enum ledger_move_failure {
	LEDGER_MOVE_DONE = 0,
	LEDGER_MOVE_FEW = 1,    /* too little of the process's memory is movable */
	LEDGER_MOVE_HOST = 2,   /* no host memory available */
	LEDGER_MOVE_DEVICE = 3, /* no room on the device */
	LEDGER_MOVE_DRIVER = 4, /* any other error of the driver */
	LEDGER_MOVE_BUSY = 5,   /* the process is capturing work for a graph */
};

struct ledger_move {
	uint8_t want;     /* an enum ledger_place, below a number that is new each time */
	uint8_t is;       /* an enum ledger_place */
	uint8_t answered; /* the last `want` that was completed or abandoned */
	uint8_t failure;  /* an enum ledger_move_failure, for `answered` */
} __attribute__((aligned(4)));
#define LEDGER_WANT_PLACE 15u
#define LEDGER_WANT_NUMBER 16u
static_assert(sizeof(struct ledger_move) == 4, "a futex");

static inline uint8_t ledger_want(uint8_t was, enum ledger_place place)
{
	return (uint8_t)(((was & ~LEDGER_WANT_PLACE) + LEDGER_WANT_NUMBER) | place);
}

enum ledger_call {
	LEDGER_CALL_OTHER,
	LEDGER_CALL_ALLOC,
	LEDGER_CALL_MANAGED,
	LEDGER_CALL_ASYNC,
	LEDGER_CALL_CREATE,
	LEDGER_CALL_ARRAY,
	LEDGER_CALL_PITCH,
	LEDGER_CALL_BLOCK,
	LEDGER_CALL_POOL,
	LEDGER_CALL_CONTEXT,
	LEDGER_CALL_GRAPH,
	LEDGER_CALL_IMPORT,
	LEDGER_CALL_IPC,
	LEDGER_CALL_EXTERNAL,
	LEDGER_CALL_HEAP,
	LEDGER_CALL_CODE,
	LEDGER_CALL_STACK,
	LEDGER_CALL_STREAM,
	LEDGER_CALL_LAST = LEDGER_CALL_STREAM,
};

/* The page has only a call's number, so no text of a hostile process is displayed. */
static inline const char *ledger_call_name(uint32_t call)
{
	static const char *const names[LEDGER_CALL_LAST + 1] = {
	    "memory",
	    "cuMemAlloc",
	    "cuMemAllocManaged",
	    "cuMemAllocAsync",
	    "cuMemCreate",
	    "an array",
	    "a pitch",
	    "a block of small allocations",
	    "a pool's growth",
	    "a context",
	    "a graph's launch",
	    "an import",
	    "cuIpcOpenMemHandle",
	    "cuImportExternalMemory",
	    "the heap of kernels",
	    "code and its variables",
	    "the stack of kernels",
	    "a stream",
	};

	return names[call <= LEDGER_CALL_LAST ? call : LEDGER_CALL_OTHER];
}

/* A refusal, as described by the refused process. */
struct ledger_refusal {
	uint64_t bytes;    /* requested */
	uint64_t used;     /* bytes charged by all lanes, including overhead */
	uint64_t overhead; /* bytes of `used` that are overhead */
	uint64_t needed;   /* highest used + bytes refused in the slice since the last report */
	uint32_t device;   /* index in the slice's ledger */
	uint32_t call;     /* an enum ledger_call */
	uint32_t by_pool;  /* 1: by the pool's limit; `used` and `overhead` are the pool's */
	uint32_t reserved;
};
static_assert(sizeof(struct ledger_refusal) == 48, "ledger_refusal");

/* One lane. The enforcer alone writes its identity. */
struct ledger_lane {
	uint64_t generation; /* incremented at each assignment */
	uint32_t state;
	uint32_t pid;    /* in the enforcer's pid namespace */
	uint64_t start;  /* start time, clock ticks since boot (proc(5) stat, 22) */
	uint64_t pid_ns; /* inode of its own pid namespace */
	uint32_t ns_pid; /* its pid there */
	struct ledger_move move;
	uint64_t first_uncharged; /* as ledger_entry.uncharged: first thread, all devices */
	uint64_t loads; /* the same for calls that may take any amount: ledger_begin_load() */
	/* Elastic slices: calls of the driver under way in the low 16 bits, all calls ever above.
	 * 0 if a fork would count here, too: the kernel cannot clear memory (Linux < 4.14). */
	uint64_t calls;
	/* The owner increments `described` before and after it writes its last refusal. The
	 * enforcer sets `reported` to it once reported. */
	uint64_t described, reported;
	struct ledger_refusal refusal;
	struct ledger_entry entry[LEDGER_DEVICES];
};
static_assert(sizeof(struct ledger_lane) == 128 + 64 * LEDGER_DEVICES, "ledger_lane");

enum ledger_flags {
	LEDGER_CLOSED = 1u, /* the slice was released: no more charges */
};

struct ledger {
	uint64_t magic;
	uint32_t layout;
	uint32_t lanes;
	uint64_t size;
	uint32_t device_count;
	uint32_t high_lane; /* highest lane ever assigned */
	uint32_t flags;
	uint32_t record;   /* 1: record mode, nothing is refused */
	uint8_t slice[16]; /* random name, which identifies mappings of this ledger */
	char pool[64];     /* name of the pool, NUL-terminated; empty for a slice */
	/* 1 while an elastic slice is evicted or about to be. Processes then make no calls of the
	 * driver: they increment `wishes` and wait on the low half of this word, a futex. Written
	 * by the enforcer only. */
	uint64_t away;
	struct ledger_device device[LEDGER_DEVICES];
	uint32_t wishes; /* requests for the return of an elastic slice; a futex */
	uint8_t padding[4096 - 128 - 128 * LEDGER_DEVICES - 4]; /* lanes begin on a page */
	struct ledger_lane lane[LEDGER_LANES];
	uint64_t shared[LEDGER_SHARED];
};
static_assert(offsetof(struct ledger, device) == 128, "devices begin on a cache line");
static_assert(offsetof(struct ledger, lane) == 4096, "lanes begin on a page");

enum ledger_result {
	LEDGER_OK = 0,
	LEDGER_REFUSED = 1, /* it does not fit */
	LEDGER_BUSY = 2,    /* the word changed too often during the attempt: try again later */
	LEDGER_DAMAGED = 3, /* the page holds values that no correct process writes */
};

/* Lost swaps until LEDGER_BUSY: only an endless rewrite of the word causes so many. */
#define LEDGER_TRIES 1000000u

/* The owner's view of its lane on one device: its last effective change, and the bytes held. In its
 * own memory, so that no sibling can falsify it. */
struct ledger_account {
	struct ledger *ledger;
	uint32_t device, lane;
	uint64_t number; /* the last change that took effect (or the initial one) */
	uint64_t held;
};

/* Prepares a zeroed page. Enforcer only. */
void ledger_format(struct ledger *ledger, const uint8_t slice[16]);

/* Checks magic, layout and size of a page. */
bool ledger_valid(const struct ledger *ledger, uint64_t size);

/* Opens the account of a lane just assigned to the caller. For lane 0 of a restarted enforcer, it
 * decides whether the predecessor's last change took effect. */
struct ledger_account ledger_open(struct ledger *ledger, uint32_t device, uint32_t lane);

/* Charges `bytes`; refuses if used + bytes exceeds the limit. */
enum ledger_result ledger_charge(struct ledger_account *account, uint64_t bytes);

/* Sets the bytes held, up or down, without checking the limit. */
enum ledger_result ledger_set(struct ledger_account *account, uint64_t held);

/* Releases `bytes`, at most what the account holds. */
enum ledger_result ledger_release(struct ledger_account *account, uint64_t bytes);

/* Sets the limit. Once it returns, no charge that read the old limit can take effect. Enforcer
 * only, by lane 0; a successor repeats an interrupted call. (LEDGER_CLOSED alone does not stop a
 * charge that has read the flag already; a limit of 0 does.) */
enum ledger_result ledger_limit(struct ledger_account *account, uint64_t limit);

/*
 * Releases the bytes of a dead lane on one device. The caller has seen that the process with this
 * `generation` of the lane is dead. Concurrent and late calls are harmless. *bytes, if not NULL, is
 * what this call released.
 *
 * The caller reads the generation, then the identity, then checks for death. In another order, a
 * dead owner's identity could be taken for its successor's.
 */
enum ledger_result ledger_settle(struct ledger *ledger, uint32_t device, uint32_t lane,
                                 uint64_t generation, uint64_t *bytes);

/* Prepares a dead process's lane for a new one: settles it on every device, then raises its
 * generation. Enforcer only. The caller writes the identity before (see ledger_settle), the state
 * after. */
enum ledger_result ledger_recycle(struct ledger *ledger, uint32_t lane);

/* Counters, for any thread of the owner. `first` is set for the one thread that counts by plain
 * stores, in a nanosecond, where an atomic addition takes six. It counts in words of its own: the
 * halves of entry.allocations are separate numbers. A full half is added to retired_allocations. */
void ledger_count_refusal(const struct ledger_account *account);
/* Describes the refusal that is counted next. Its `needed` is ignored. */
void ledger_describe_refusal(struct ledger *ledger, uint32_t lane,
                             const struct ledger_refusal *refusal);
/* Copies the lane's last refusal. Returns `described`, to store in `reported`; 0 if it was
 * reported, or is being written. */
uint64_t ledger_last_refusal(const struct ledger *ledger, uint32_t lane,
                             struct ledger_refusal *refusal);
uint64_t ledger_allocations(const struct ledger_entry *entry);
__attribute__((cold, noinline)) void ledger_retire_allocations(struct ledger *ledger,
                                                               uint32_t device, uint32_t *half);

/* Counts one in a word like entry.allocations. Returns the half if it is full, else NULL. */
static inline uint32_t *ledger_count(uint64_t *word, bool first)
{
	uint32_t *half = (uint32_t *)(void *)word + !first, now;

	if (first) {
		now = __atomic_load_n(half, __ATOMIC_RELAXED) + 1;
		__atomic_store_n(half, now, __ATOMIC_RELAXED);
	} else {
		now = __atomic_add_fetch(half, 1, __ATOMIC_RELAXED);
	}
	return __builtin_expect(now >> 31, 0) ? half : NULL;
}

static inline uint64_t *ledger_allocations_word(const struct ledger_account *account)
{
	return &account->ledger->lane[account->lane].entry[account->device].allocations;
}

static inline void ledger_count_allocation(const struct ledger_account *account, bool first)
{
	uint32_t *full = ledger_count(ledger_allocations_word(account), first);

	if (__builtin_expect(full != NULL, 0))
		ledger_retire_allocations(account->ledger, account->device, full);
}

/* Enclose a call of the driver that takes an amount known only afterwards: until its end, by which
 * that is charged or given back, the driver may hold more than the lane. No barrier follows the
 * beginning: a query of the driver waits for the lock under which the call takes its memory, and
 * the lane is read after the query. */
#define LEDGER_CALL_ENDED ((1ull << 32) - 1) /* one call less under way, one more ended */

static inline void ledger_count_call(const struct ledger_account *account, bool first,
                                     uint64_t more)
{
	struct ledger_lane *lane = &account->ledger->lane[account->lane];

	if (first)
		__atomic_store_n(&lane->first_uncharged,
		                 __atomic_load_n(&lane->first_uncharged, __ATOMIC_RELAXED) + more,
		                 __ATOMIC_RELEASE);
	else
		__atomic_fetch_add(&lane->entry[account->device].uncharged, more, __ATOMIC_ACQ_REL);
}

static inline void ledger_begin_uncharged(const struct ledger_account *account, bool first)
{
	ledger_count_call(account, first, 1);
}

static inline void ledger_end_uncharged(const struct ledger_account *account, bool first)
{
	ledger_count_call(account, first, LEDGER_CALL_ENDED);
}

/* The same for a call that may take any amount on any device: loading code. */
static inline void ledger_count_load(const struct ledger_account *account, uint64_t more)
{
	__atomic_fetch_add(&account->ledger->lane[account->lane].loads, more, __ATOMIC_ACQ_REL);
}

static inline void ledger_begin_load(const struct ledger_account *account)
{
	ledger_count_load(account, 1);
}

static inline void ledger_end_load(const struct ledger_account *account)
{
	ledger_count_load(account, LEDGER_CALL_ENDED);
}

/* Sets how much of what the account holds is overhead. */
void ledger_set_context(const struct ledger_account *account, uint64_t bytes);

/* Shared memory is charged once, to its lender, which notes the exported name here: a nonzero hash
 * of an IPC or fabric handle and of the noting process. Each borrower notes it too while it is
 * open. About LEDGER_SHARED latest notes are kept. Memory without its lender's note counts as
 * another slice's. */
void ledger_lend(struct ledger *ledger, uint64_t name);
void ledger_unlend(struct ledger *ledger, uint64_t name);
bool ledger_lent(const struct ledger *ledger, uint64_t name);

/* Returns the end of the lanes ever assigned, which begin at 1. */
static inline uint32_t ledger_lanes(const struct ledger *ledger)
{
	uint32_t high = __atomic_load_n(&ledger->high_lane, __ATOMIC_ACQUIRE);

	return high < LEDGER_SLOTS ? high + 1 : LEDGER_LANES;
}

/* Returns the bytes that a lane holds, as seen by another process. */
uint64_t ledger_held(const struct ledger *ledger, uint32_t device, uint32_t lane);

/* Returns the number of the lane's last change; unchanged if nothing was charged or released. */
uint64_t ledger_number(const struct ledger *ledger, uint32_t device, uint32_t lane);

/* The owner's calls by ledger_begin_uncharged(), modulo 2^32 and as the owner counted them. A later
 * read of the lane includes the charges of all that had ended. */
struct ledger_uncharged {
	uint32_t under_way, ended;
};
struct ledger_uncharged ledger_uncharged(const struct ledger *ledger, uint32_t device,
                                         uint32_t lane);

/* The same of loads, on any device. */
struct ledger_uncharged ledger_loads(const struct ledger *ledger, uint32_t lane);

#endif
